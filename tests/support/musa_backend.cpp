/* A device of torch's PrivateUse1 key that is none: its memory is the host's, and every operator
 * that has no kernel here is computed on the CPU. To torch, and to all that asks torch, it is a
 * device as any other: "musa:0" once Python has named it so.
 *
 * gelu has its own kernel, whose results in float32 a test can make wrong by a factor. */

#include <cstdlib>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto kMusa = c10::DeviceType::PrivateUse1;

double gelu_factor = 1.0;

/* --- memory ------------------------------------------------------------------------------- */

struct MusaAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void *memory = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        TORCH_CHECK(bytes == 0 || memory != nullptr, "out of memory");
        return {memory, memory, &std::free, c10::Device(kMusa, 0)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
    void copy_data(void *to, const void *from, std::size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
};

MusaAllocator allocator;

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
    constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
    constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_strided_generic(size, stride, &allocator, keys,
                                             c10::dtype_or_default(dtype));
}

/* The same memory as a tensor on the CPU, for as long as `tensor` lives. */
at::Tensor on_cpu(const at::Tensor &tensor) {
    constexpr c10::DispatchKeySet keys(c10::DispatchKey::CPU);
    c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                         c10::DataPtr(tensor.storage().mutable_data(), c10::Device(c10::kCPU)),
                         nullptr, false);
    auto view = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, tensor.dtype());
    auto *impl = view.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return view;
}

at::Tensor host_form(const at::Tensor &tensor) {
    return tensor.device().type() == kMusa ? on_cpu(tensor) : tensor;
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &to, bool) {
    host_form(to).copy_(host_form(self));
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &to) {
    at::native::resize_(to, self.sizes(), std::nullopt);
    return copy_from(self, to, false);
}

/* --- operators ---------------------------------------------------------------------------- */

at::Tensor gelu(const at::Tensor &self, c10::string_view approximate) {
    at::Tensor result = at::gelu(on_cpu(self), approximate);
    if (self.scalar_type() == at::kFloat) {
        result.mul_(gelu_factor);
    }
    return result.to(self.device());
}

void set_gelu_factor(double factor) {
    gelu_factor = factor;
}

void on_the_cpu(const c10::OperatorHandle &op, c10::Stack *stack) {
    at::native::cpu_fallback(op, stack);
}

/* --- what torch asks of a device ---------------------------------------------------------- */

struct MusaHooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::Device getDeviceFromPtr(void *) const override { return {kMusa, 0}; }
};

MusaHooks hooks;

/* All is done at once, so that there is nothing to wait for. */
struct MusaGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
    static constexpr c10::DeviceType static_type = kMusa;

    c10::Device exchangeDevice(c10::Device) const override { return {kMusa, 0}; }
    c10::Device getDevice() const override { return {kMusa, 0}; }
    c10::Stream getStream(c10::Device) const noexcept override {
        return c10::Stream(c10::Stream::DEFAULT, c10::Device(kMusa, 0));
    }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
    void record(void **, const c10::Stream &, c10::DeviceIndex, c10::EventFlag) const override {}
    void block(void *, const c10::Stream &) const override {}
    bool queryEvent(void *) const override { return true; }
    void synchronizeEvent(void *) const override {}
    void synchronizeDevice(c10::DeviceIndex) const override {}
};

[[maybe_unused]] const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
}();

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, MusaGuard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("_copy_from", &copy_from);
    m.impl("_copy_from_and_resize", &copy_from_and_resize);
    m.impl("as_strided", &at::native::as_strided_tensorimpl);
    m.impl("view", &at::native::view);
    m.impl("_reshape_alias", &at::native::_reshape_alias);
    m.impl("unfold", &at::native::unfold);
    m.impl("resize_", &at::native::resize_);
    m.impl("set_.source_Storage", &at::native::set_);
    m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
    m.impl("gelu", &gelu);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

TORCH_LIBRARY(small_musa, m) {
    m.def("set_gelu_factor(float factor) -> ()", &set_gelu_factor);
}

#include "gpu_kernels/gpu_operations.h"

#include <string.h>

#include "compare/compare.h"
#include "tensor/special_values.h"

/* Blocks that are enough to keep a multiprocessor busy. */
enum { BLOCKS_A_PROCESSOR = 8, QUAD_BYTES = 16, WARPS = MU_GPU_THREADS / 32 };

/* --- a tensor for the device -------------------------------------------------------------- */

_Static_assert((int)MU_GPU_DIMS_MAX == (int)MU_TENSOR_DIMS_MAX, "all dimensions find room");

static bool is_dense(const struct mu_gpu_layout *layout) {
    return layout->ndim == 1 && (layout->step_bytes[0] == 1 << layout->item_shift) &&
           (uintptr_t)layout->data % QUAD_BYTES == 0;
}

void mu_gpu_layout_of(const struct mu_tensor *tensor, struct mu_gpu_layout *layout) {
    struct mu_tensor_walk walk;
    memset(layout, 0, sizeof(*layout));
    layout->data = tensor->data;
    layout->elements = (uint64_t)tensor->elements;
    layout->dtype = tensor->dtype;
    layout->item_shift = __builtin_ctzll(mu_dtype_info(tensor->dtype)->size);
    layout->ndim = 1;
    if (tensor->elements > 0) {
        mu_tensor_walk_start(&walk, tensor, 0, tensor->elements);
        layout->ndim = walk.ndim;
        for (int dim = 0; dim < walk.ndim; dim++) {
            layout->shape[dim] = (uint64_t)walk.shape[dim];
            layout->step_bytes[dim] = walk.step_bytes[dim];
        }
    }
    layout->dense = is_dense(layout);
}

/* --- a call ------------------------------------------------------------------------------- */

/* Work for one stream. The first failure is kept, and what comes after it is left out. */
struct call {
    struct mu_gpu *gpu; /* borrowed, as all of it */
    const struct mu_cuda_driver *driver;
    const struct mu_gpu_device *device;
    const CUfunction *functions;
    CUstream stream;
    CUresult result;
    const char *failed; /* the driver's function */
};

static void note(struct call *call, const char *name, CUresult result) {
    if (result != CUDA_SUCCESS && call->result == CUDA_SUCCESS) {
        call->result = result;
        call->failed = name;
    }
}

/* Makes the device's context current; end_call must follow. */
MU_MUST_CHECK static int begin_device(struct call *call, struct mu_gpu *gpu, int device_index,
                                      void *stream, struct mu_error *err) {
    *call = (struct call){
        .gpu = gpu, .driver = mu_gpu_driver_of(gpu), .stream = stream, .result = CUDA_SUCCESS};
    int code = mu_gpu_device_of(gpu, device_index, &call->device, err);
    if (code != MU_OK) {
        return code;
    }
    CUresult result = call->driver->ctx_push(call->device->context);
    return result == CUDA_SUCCESS ? MU_OK : mu_gpu_fail(gpu, "cuCtxPushCurrent", result, err);
}

MU_MUST_CHECK static int end_call(const struct call *call, struct mu_error *err) {
    CUcontext popped;
    call->driver->ctx_pop(&popped);
    return call->failed == NULL ? MU_OK : mu_gpu_fail(call->gpu, call->failed, call->result, err);
}

MU_MUST_CHECK static int begin_call(struct call *call, struct mu_gpu *gpu,
                                    const struct mu_tensor *tensor,
                                    const struct mu_gpu_program *program, void *stream,
                                    struct mu_error *err) {
    if (tensor->device != MU_DEVICE_CUDA) {
        mu_error_set(err, MU_ERR_ARGUMENT, "a tensor on the CPU, given to a GPU's kernel");
        return MU_ERR_ARGUMENT;
    }
    int code = begin_device(call, gpu, tensor->device_index, stream, err);
    if (code != MU_OK) {
        return code;
    }
    code = mu_gpu_functions_of(gpu, tensor->device_index, program, &call->functions, err);
    if (code != MU_OK) {
        mu_error_kept(end_call(call, NULL));
    }
    return code;
}

static void launch(struct call *call, int kernel, uint64_t blocks, unsigned threads,
                   void **arguments) {
    if (call->failed == NULL) {
        note(call, "cuLaunchKernel",
             call->driver->launch_kernel(call->functions[kernel], (unsigned)blocks, 1, 1, threads,
                                         1, 1, 0, call->stream, arguments, NULL));
    }
}

static void zero_words(struct call *call, void *memory, size_t words) {
    if (call->failed == NULL) {
        note(call, "cuMemsetD32Async",
             call->driver->memset_words_async((CUdeviceptr)(uintptr_t)memory, 0, words,
                                              call->stream));
    }
}

static uint64_t ceil_div(uint64_t value, uint64_t by) {
    return value / by + (value % by != 0);
}

/* The number of blocks for `wanted` shares of work: at most as many as run at once. Then each block
 * takes several shares. */
static uint64_t grid(const struct call *call, uint64_t wanted) {
    uint64_t most = (uint64_t)call->device->processors * BLOCKS_A_PROCESSOR;
    return wanted < most ? wanted : most;
}

/* --- scratch memory ----------------------------------------------------------------------- */

/* Allocates memory in the order of the stream, so that nothing waits. Returns NULL, and marks the
 * call as failed, when there is none. */
static void *take_memory(struct call *call, size_t bytes) {
    CUdeviceptr memory = 0;
    void *pointer = NULL;
    if (call->device->pool == NULL) {
        note(call, "cuMemPoolCreate", CUDA_ERROR_NOT_SUPPORTED);
    }
    if (call->failed == NULL) {
        note(call, "cuMemAllocFromPoolAsync",
             call->driver->mem_alloc_from_pool(&memory, bytes, call->device->pool, call->stream));
    }
    /* The driver returns an address as a number. */
    memcpy(&pointer, &memory, sizeof(pointer));
    return call->failed == NULL ? pointer : NULL;
}

static void give_memory(struct call *call, void *memory) {
    if (memory != NULL) {
        note(call, "cuMemFreeAsync",
             call->driver->mem_free_async((CUdeviceptr)(uintptr_t)memory, call->stream));
    }
}

/* --- hash --------------------------------------------------------------------------------- */

enum { HASH_BLOCKS, HASH_ROWS, HASH_ENDS, HASH_FINISH };

static void rows_of(const struct mu_hash_box *box, struct mu_gpu_rows *rows) {
    memset(rows, 0, sizeof(*rows));
    rows->rows = box->rows;
    rows->row_bytes = box->row_bytes;
    rows->begin = box->begin;
    rows->ndim = box->rows_ndim;
    for (int dim = 0; dim < box->rows_ndim; dim++) {
        rows->shape[dim] = (uint64_t)box->tensor.shape[dim];
        rows->pitch[dim] = box->pitch[dim];
    }
}

/* Whole blocks of a single run are left out of `rows`. */
static void add_blocks(struct call *call, struct mu_gpu_layout *layout, struct mu_gpu_rows *rows,
                       void *sums) {
    uint64_t first = rows->begin / MU_HASH_BLOCK_BYTES;
    uint64_t blocks = rows->row_bytes / MU_HASH_BLOCK_BYTES;
    void *arguments[] = {layout, &first, &blocks, &sums};
    if (layout->dense && rows->rows == 1 && rows->begin % MU_HASH_BLOCK_BYTES == 0 && blocks > 0) {
        launch(call, HASH_BLOCKS, grid(call, ceil_div(blocks, WARPS)), MU_GPU_THREADS, arguments);
        rows->skip = blocks * MU_HASH_BLOCK_BYTES;
    }
}

/* The quads of all rows; with `tail`, also the last one of the whole where it is not full. */
static void add_quads(struct call *call, const struct mu_hash_box *box, bool tail, void *sums) {
    struct mu_gpu_layout layout;
    struct mu_gpu_rows rows;
    void *arguments[] = {&layout, &rows, &sums};
    zero_words(call, sums, sizeof(struct mu_hash_sums) / sizeof(uint32_t));
    if (box->rows == 0) {
        return;
    }
    mu_gpu_layout_of(&box->tensor, &layout);
    rows_of(box, &rows);
    rows.tail = tail;
    add_blocks(call, &layout, &rows, sums);
    if (rows.skip < rows.row_bytes) {
        uint64_t units = rows.rows * mu_gpu_row_units(&rows);
        launch(call, HASH_ROWS, grid(call, ceil_div(units, WARPS)), MU_GPU_THREADS, arguments);
    }
}

static void hash(struct call *call, const struct mu_tensor *tensor, struct mu_gpu_layout *layout,
                 void *device_out) {
    struct mu_hash_box box;
    (void)layout;
    mu_error_kept(mu_hash_box_of(&box, tensor, tensor->shape, NULL, NULL)); /* it is the whole */
    void *sums = take_memory(call, sizeof(struct mu_hash_sums));
    void *arguments[] = {&sums, &box.total, &device_out};
    add_quads(call, &box, true, sums);
    launch(call, HASH_FINISH, 1, 1, arguments);
    give_memory(call, sums);
}

static void sums_of_whole(struct call *call, const struct mu_tensor *tensor,
                          struct mu_gpu_layout *layout, void *device_out) {
    struct mu_hash_box box;
    (void)layout;
    mu_error_kept(mu_hash_box_of(&box, tensor, tensor->shape, NULL, NULL)); /* it is the whole */
    add_quads(call, &box, true, device_out);
}

size_t mu_gpu_box_bytes(const struct mu_hash_box *box) {
    uint64_t ends = mu_hash_box_has_ends(box) ? 2 * box->rows : 0;
    return sizeof(struct mu_hash_sums) + ends * sizeof(struct mu_quad);
}

int mu_gpu_box_on(struct mu_gpu *gpu, const struct mu_hash_box *box, void *stream, void *device_out,
                  struct mu_error *err) {
    struct mu_gpu_program program = {.source = MU_GPU_HASH, .a = -1, .b = -1};
    struct mu_gpu_layout layout;
    struct mu_gpu_rows rows;
    struct call call;
    void *ends = (char *)device_out + sizeof(struct mu_hash_sums);
    void *arguments[] = {&layout, &rows, &ends};
    int code = begin_call(&call, gpu, &box->tensor, &program, stream, err);
    if (code != MU_OK) {
        return code;
    }
    add_quads(&call, box, false, device_out);
    if (mu_hash_box_has_ends(box)) {
        mu_gpu_layout_of(&box->tensor, &layout);
        rows_of(box, &rows);
        launch(&call, HASH_ENDS, grid(&call, ceil_div(2 * rows.rows, MU_GPU_THREADS)),
               MU_GPU_THREADS, arguments);
    }
    return end_call(&call, err);
}

/* --- NaN and Inf -------------------------------------------------------------------------- */

enum { COUNT_DENSE, COUNT_STRIDED };

static void count_nan_inf(struct call *call, const struct mu_tensor *tensor,
                          struct mu_gpu_layout *layout, void *device_out) {
    struct mu_special_rule rule = mu_special_rule_of(tensor->dtype);
    uint64_t quads = ceil_div((uint64_t)mu_tensor_bytes(tensor), QUAD_BYTES);
    uint64_t blocks = grid(call, ceil_div(quads, MU_GPU_THREADS));
    void *arguments[] = {layout, &rule, &device_out};
    zero_words(call, device_out, MU_GPU_NAN_INF_WORDS * 2);
    if (blocks > 0 && rule.bits > 0) {
        launch(call, layout->dense ? COUNT_DENSE : COUNT_STRIDED, blocks, MU_GPU_THREADS,
               arguments);
    }
}

/* --- statistics --------------------------------------------------------------------------- */

enum { STATS_DENSE, STATS_STRIDED, STATS_END };

/* The result depends on how a tensor is cut, so the cut depends on its size alone. */
enum { STATS_BLOCKS_MAX = 2048, STATS_BLOCK_QUADS = MU_GPU_THREADS * 4 };

/* Either of `words` and `part` may be NULL. */
static void find_stats(struct call *call, const struct mu_tensor *tensor,
                       struct mu_gpu_layout *layout, double *words, struct mu_stats_part *part) {
    uint64_t quads = ceil_div((uint64_t)mu_tensor_bytes(tensor), QUAD_BYTES);
    uint64_t wanted = ceil_div(quads, STATS_BLOCK_QUADS);
    int blocks = wanted == 0 ? 1 : wanted < STATS_BLOCKS_MAX ? (int)wanted : STATS_BLOCKS_MAX;
    struct mu_stats_part *parts = NULL;
    if (blocks > 1) {
        parts = take_memory(call, sizeof(*parts) * (size_t)blocks);
    }
    void *arguments[] = {layout, &parts, &words, &part};
    void *last[] = {&parts, &blocks, &words, &part};
    launch(call, layout->dense ? STATS_DENSE : STATS_STRIDED, (uint64_t)blocks, MU_GPU_THREADS,
           arguments);
    if (blocks > 1) {
        launch(call, STATS_END, 1, MU_GPU_THREADS, last);
    }
    give_memory(call, parts);
}

static void stats(struct call *call, const struct mu_tensor *tensor, struct mu_gpu_layout *layout,
                  void *device_out) {
    find_stats(call, tensor, layout, device_out, NULL);
}

static void stats_part(struct call *call, const struct mu_tensor *tensor,
                       struct mu_gpu_layout *layout, void *device_out) {
    find_stats(call, tensor, layout, NULL, device_out);
}

/* --- the operations on one tensor --------------------------------------------------------- */

/* `of_dtype`: whether the program is compiled for the type of the tensor. */
static const struct operation {
    size_t bytes; /* of the result, a multiple of 8 */
    enum mu_gpu_source source;
    bool of_dtype;
    void (*enqueue)(struct call *call, const struct mu_tensor *tensor, struct mu_gpu_layout *layout,
                    void *device_out);
} operations[] = {
    [MU_GPU_OP_HASH] = {sizeof(uint64_t) * MU_GPU_HASH_WORDS, MU_GPU_HASH, false, hash},
    [MU_GPU_OP_SUMS] = {sizeof(struct mu_hash_sums), MU_GPU_HASH, false, sums_of_whole},
    [MU_GPU_OP_NAN_INF] = {sizeof(int64_t) * MU_GPU_NAN_INF_WORDS, MU_GPU_NAN_INF, false,
                           count_nan_inf},
    [MU_GPU_OP_STATS] = {sizeof(double) * MU_GPU_STATS_WORDS, MU_GPU_STATS, true, stats},
    [MU_GPU_OP_STATS_PART] = {sizeof(struct mu_stats_part), MU_GPU_STATS, true, stats_part},
};

size_t mu_gpu_result_bytes(enum mu_gpu_operation operation) {
    return operations[operation].bytes;
}

int mu_gpu_enqueue_on(struct mu_gpu *gpu, enum mu_gpu_operation operation,
                      const struct mu_tensor *tensor, void *stream, void *device_out,
                      struct mu_error *err) {
    const struct operation *wanted = &operations[operation];
    struct mu_gpu_program program = {
        .source = wanted->source, .a = wanted->of_dtype ? tensor->dtype : -1, .b = -1};
    struct mu_gpu_layout layout;
    struct call call;
    int code = begin_call(&call, gpu, tensor, &program, stream, err);
    if (code != MU_OK) {
        return code;
    }
    mu_gpu_layout_of(tensor, &layout);
    wanted->enqueue(&call, tensor, &layout, device_out);
    return end_call(&call, err);
}

/* --- comparison --------------------------------------------------------------------------- */

enum { COMPARE_PAIRS, COMPARE_END };

/* Cut by the number of elements alone, for the same reason. */
enum { COMPARE_BLOCKS_MAX = 2048, COMPARE_CHUNK_MIN = MU_GPU_THREADS * 16 };

_Static_assert((int)MU_GPU_ELEMENT_BYTES == (int)MU_MISMATCH_BYTES &&
                   sizeof(struct mu_gpu_mismatch) == sizeof(struct mu_mismatch),
               "a list of the GPU is one of compare.h");

size_t mu_gpu_diff_bytes(int64_t list_max) {
    return sizeof(struct mu_gpu_diff) + (size_t)list_max * sizeof(struct mu_gpu_mismatch);
}

MU_MUST_CHECK static int check_pair(const struct mu_tensor *a, const struct mu_tensor *b,
                                    struct mu_error *err) {
    if (a->device != b->device || a->device_index != b->device_index) {
        mu_error_set(err, MU_ERR_ARGUMENT, "the two tensors are on different devices");
        return MU_ERR_ARGUMENT;
    }
    if (!mu_tensor_same_shape(a, b)) {
        mu_error_set(err, MU_ERR_ARGUMENT, "the shapes of the two tensors differ");
        return MU_ERR_ARGUMENT;
    }
    return MU_OK;
}

int mu_gpu_compare_on(struct mu_gpu *gpu, const struct mu_tensor *a, const struct mu_tensor *b,
                      const struct mu_compare_tolerance *tolerance, int64_t list_max, void *stream,
                      struct mu_gpu_diff *device_out, struct mu_error *err) {
    struct mu_gpu_program program = {.source = MU_GPU_COMPARE, .a = a->dtype, .b = b->dtype};
    struct mu_gpu_layout layout_a, layout_b;
    struct mu_compare_tolerance allowed = *tolerance;
    struct call call;
    int code = check_pair(a, b, err);
    code = code != MU_OK ? code : begin_call(&call, gpu, a, &program, stream, err);
    if (code != MU_OK) {
        return code;
    }
    mu_gpu_layout_of(a, &layout_a);
    mu_gpu_layout_of(b, &layout_b);
    uint64_t chunk = ceil_div(ceil_div(layout_a.elements, COMPARE_BLOCKS_MAX), COMPARE_CHUNK_MIN) *
                     COMPARE_CHUNK_MIN;
    uint64_t blocks = chunk == 0 ? 0 : ceil_div(layout_a.elements, chunk);
    struct mu_compare_part *parts = take_memory(&call, sizeof(*parts) * (size_t)(blocks + 1));
    void *arguments[] = {&layout_a, &layout_b, &allowed, &chunk, &parts};
    void *last[] = {&layout_a, &layout_b, &allowed,  &chunk,
                    &parts,    &blocks,   &list_max, &device_out};
    if (blocks > 0) {
        launch(&call, COMPARE_PAIRS, blocks, MU_GPU_THREADS, arguments);
    }
    launch(&call, COMPARE_END, 1, MU_GPU_THREADS, last);
    give_memory(&call, parts);
    return end_call(&call, err);
}

/* --- memory for results ------------------------------------------------------------------- */

/* Waiting would break a capture, and captured work has not run yet. */
static bool is_captured(const struct call *call) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = call->driver->stream_is_capturing(call->stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

int mu_gpu_results_open(struct mu_gpu_results *results, struct mu_gpu *gpu, int device_index,
                        void *stream, size_t bytes, struct mu_error *err) {
    struct call call;
    *results = (struct mu_gpu_results){
        .gpu = gpu, .device_index = device_index, .stream = stream, .bytes = bytes};
    int code = begin_device(&call, gpu, device_index, stream, err);
    if (code != MU_OK) {
        return code;
    }
    results->captured = is_captured(&call);
    if (!results->captured) {
        results->memory = take_memory(&call, bytes);
        return end_call(&call, err);
    }
    mu_error_kept(end_call(&call, NULL));
    mu_error_set(err, MU_ERR_STATE,
                 "the stream is being captured into a CUDA graph, so nothing can be fetched from "
                 "it; the operators torch.ops.my_utils leave their results on the device");
    return MU_ERR_STATE;
}

int mu_gpu_results_fetch(const struct mu_gpu_results *results, void *host, struct mu_error *err) {
    struct call call;
    CUdeviceptr memory = (CUdeviceptr)(uintptr_t)results->memory;
    int code = begin_device(&call, results->gpu, results->device_index, results->stream, err);
    if (code != MU_OK) {
        return code;
    }
    note(&call, "cuMemcpyDtoHAsync",
         call.driver->copy_to_host_async(host, memory, results->bytes, call.stream));
    note(&call, "cuStreamSynchronize", call.driver->stream_synchronize(call.stream));
    return end_call(&call, err);
}

void mu_gpu_results_close(struct mu_gpu_results *results) {
    struct call call;
    if (results->memory != NULL &&
        begin_device(&call, results->gpu, results->device_index, results->stream, NULL) == MU_OK) {
        give_memory(&call, results->memory);
        mu_error_kept(end_call(&call, NULL));
    }
    results->memory = NULL;
}

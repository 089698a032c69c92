#include "core/torch_storage.h"

#include <dlfcn.h>
#include <string.h>

/* POSIX lets a data pointer of dlsym hold a function. */
bool mu_torch_symbol(void *library, const char *symbol, void *out) {
    void *address = dlsym(library, symbol);
    memcpy(out, &address, sizeof(address));
    return address != NULL;
}

bool mu_torch_storage_find(struct mu_torch_storage *storage) {
    void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library == NULL) {
        return false;
    }
    bool found = mu_torch_symbol(library, "aoti_torch_get_storage_size", &storage->get_size) &&
                 mu_torch_symbol(library, "aoti_torch_get_storage_offset", &storage->get_offset);
    dlclose(library); /* torch keeps it loaded for good */
    return found;
}

bool mu_torch_storage_holds(const struct mu_torch_storage *storage, struct mu_torch_tensor *tensor,
                            const struct mu_tensor *view) {
    int64_t bytes, offset;
    return view->elements == 0 ||
           (storage->get_size(tensor, &bytes) == 0 && storage->get_offset(tensor, &offset) == 0 &&
            mu_tensor_is_within(view, offset, bytes));
}

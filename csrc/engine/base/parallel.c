#include "base/parallel.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

/* Of libtorch's stable C ABI, torch/csrc/stable/c/shim.h, since torch 2.10. */
typedef int32_t (*torch_parallel_for_fn)(int64_t begin, int64_t end, int64_t grain,
                                         void (*task)(int64_t, int64_t, void *), void *context);
typedef int32_t (*torch_num_threads_fn)(uint32_t *threads);

/* Found once: torch stays loaded for good. */
static _Atomic(torch_parallel_for_fn) torch_parallel_for;
static _Atomic(torch_num_threads_fn) torch_num_threads;
static _Atomic(pid_t) loaded_in;

void mu_parallel_load(void) {
    atomic_store(&loaded_in, getpid());
}

static torch_parallel_for_fn find_pool(void) {
    torch_parallel_for_fn found = atomic_load_explicit(&torch_parallel_for, memory_order_acquire);
    if (found != NULL) {
        return found;
    }
    void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library == NULL) {
        return NULL;
    }
    found = (torch_parallel_for_fn)dlsym(library, "torch_parallel_for");
    torch_num_threads_fn threads = (torch_num_threads_fn)dlsym(library, "torch_get_num_threads");
    dlclose(library);
    if (found == NULL || threads == NULL) {
        return NULL;
    }
    atomic_store_explicit(&torch_num_threads, threads, memory_order_release);
    atomic_store_explicit(&torch_parallel_for, found, memory_order_release);
    return found;
}

static torch_parallel_for_fn usable_pool(void) {
    return getpid() == atomic_load(&loaded_in) ? find_pool() : NULL;
}

void mu_parallel_for(int64_t count, int64_t grain, mu_parallel_task task, void *context) {
    torch_parallel_for_fn pool = count > grain ? usable_pool() : NULL;
    if (pool == NULL || pool(0, count, grain, task, context) != 0) {
        task(0, count, context);
    }
}

int mu_parallel_threads(void) {
    uint32_t threads = 1;
    if (usable_pool() == NULL || atomic_load(&torch_num_threads)(&threads) != 0) {
        return 1;
    }
    return (int)threads;
}

/* While the file that NO_THREADS names exists, _core can start no thread. Preloaded in front of
 * libc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_from_core(const void *caller) {
    Dl_info info;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) {
        return 0;
    }
    return strstr(info.dli_fname, "/_core.") != NULL;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                   void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    const char *flag = getenv("NO_THREADS");
    if (flag != NULL && access(flag, F_OK) == 0 && is_from_core(__builtin_return_address(0))) {
        return EAGAIN;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, body, argument);
}

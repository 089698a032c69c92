/* Compiled kernels on disk, so that a process need not compile what another one did.
 *
 * A file an image: what it was made from and for (the key), a digest over all of it, the image.
 * A file that is damaged, foreign or of another key is as good as none. Files are written under a
 * name of their own and renamed when complete, so that processes may race. All that fails here only
 * means that kernels are compiled again: there are no errors. Any thread may call these.
 */
#ifndef MU_GPU_CACHE_H
#define MU_GPU_CACHE_H

#include <stdbool.h>
#include <stddef.h>

enum { MU_GPU_CACHE_PATH_MAX = 1024 };

/* $XDG_CACHE_HOME/my_utils, or ~/.cache/my_utils; "" where neither is set. `folder` has room for
 * MU_GPU_CACHE_PATH_MAX bytes. */
void mu_gpu_cache_folder(char *folder);

/* The image of that key, NUL-terminated, from `folder`/`name`; false when there is none. The caller
 * frees it. */
bool mu_gpu_cache_load(const char *folder, const char *name, const char *key, char **image,
                       size_t *size);

/* True when it is there now. */
bool mu_gpu_cache_store(const char *folder, const char *name, const char *key, const char *image,
                        size_t size);

#endif

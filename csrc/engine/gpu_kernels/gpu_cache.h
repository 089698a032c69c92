/* Compiled kernels on disk, so that a process need not compile what another one did.
 *
 * A file holds one image: the key (what the image was made from, and for which GPU), a digest over
 * all of it, and the image. A file that is damaged, belongs to someone else or has another key is
 * ignored. Files are written under a temporary name and renamed when complete, so that processes
 * may race. A failure here only means that kernels are compiled again, so there are no errors. Any
 * thread may call these functions.
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

/* Stores an image. True when the file exists now. */
bool mu_gpu_cache_store(const char *folder, const char *name, const char *key, const char *image,
                        size_t size);

#endif

#include "gpu_kernels/gpu_cache.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own_files.h"
#include "hash/tensor_hash.h"

enum { IMAGE_BYTES_MAX = 64 << 20, KEY_BYTES_MAX = 1024 };

static const char magic[8] = "MUGPU1\n";

struct header {
    char magic[8];
    struct mu_digest digest; /* of key and image */
    uint64_t key_bytes;
    uint64_t image_bytes;
};

void mu_gpu_cache_folder(char *folder) {
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int length = 0;
    folder[0] = '\0';
    if (cache != NULL && cache[0] == '/') {
        length = snprintf(folder, MU_GPU_CACHE_PATH_MAX, "%s/my_utils", cache);
    } else if (home != NULL && home[0] == '/') {
        length = snprintf(folder, MU_GPU_CACHE_PATH_MAX, "%s/.cache/my_utils", home);
    }
    if (length >= MU_GPU_CACHE_PATH_MAX) {
        folder[0] = '\0';
    }
}

static struct mu_digest digest_of(const char *content, size_t bytes) {
    struct mu_digest digest;
    mu_tensor_hash_bytes(mu_hash_kernel_best(), (const uint8_t *)content, bytes, &digest);
    return digest;
}

/* --- reading ------------------------------------------------------------------------------ */

MU_MUST_CHECK static bool read_all(int file, char *to, size_t bytes) {
    while (bytes > 0) {
        ssize_t got = read(file, to, bytes);
        if (got <= 0) {
            return false;
        }
        to += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* A file to which another user can write is never loaded into the GPU. */
static bool is_ours(int file, const struct header *header) {
    struct stat found;
    return fstat(file, &found) == 0 && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
           memcmp(header->magic, magic, sizeof(magic)) == 0 && header->key_bytes <= KEY_BYTES_MAX &&
           header->image_bytes <= IMAGE_BYTES_MAX &&
           (uint64_t)found.st_size == sizeof(*header) + header->key_bytes + header->image_bytes;
}

/* Key and image behind the header, or NULL. */
static char *read_content(int file, const struct header *header) {
    size_t bytes = header->key_bytes + header->image_bytes;
    char *content = malloc(bytes + 1);
    if (content == NULL || !read_all(file, content, bytes)) {
        free(content);
        return NULL;
    }
    struct mu_digest digest = digest_of(content, bytes);
    if (memcmp(&digest, &header->digest, sizeof(digest)) != 0) {
        free(content);
        return NULL;
    }
    return content;
}

static int open_in(const char *folder, const char *name) {
    char path[MU_GPU_CACHE_PATH_MAX + 256];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return length < (int)sizeof(path) ? mu_open_own(path, O_RDONLY, 0, geteuid()) : -1;
}

bool mu_gpu_cache_load(const char *folder, const char *name, const char *key, char **image,
                       size_t *size) {
    struct header header;
    char *content = NULL;
    int file = folder[0] == '\0' ? -1 : open_in(folder, name);
    if (file < 0) {
        return false;
    }
    if (read_all(file, (char *)&header, sizeof(header)) && is_ours(file, &header)) {
        content = read_content(file, &header);
    }
    close(file);
    if (content == NULL || header.key_bytes != strlen(key) ||
        memcmp(content, key, header.key_bytes) != 0) {
        free(content);
        return false;
    }
    memmove(content, content + header.key_bytes, header.image_bytes);
    content[header.image_bytes] = '\0';
    *image = content;
    *size = header.image_bytes;
    return true;
}

/* --- writing ------------------------------------------------------------------------------ */

MU_MUST_CHECK static bool write_all(int file, const void *from, size_t bytes) {
    const char *at = from;
    while (bytes > 0) {
        ssize_t put = write(file, at, bytes);
        if (put <= 0) {
            return false;
        }
        at += put;
        bytes -= (size_t)put;
    }
    return true;
}

/* Makes the folder, and the missing ones above it. */
static void make_folders(const char *folder) {
    char path[MU_GPU_CACHE_PATH_MAX];
    snprintf(path, sizeof(path), "%s", folder);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

MU_MUST_CHECK static bool write_file(int file, const char *key, const char *image, size_t size) {
    size_t key_bytes = strlen(key);
    struct header header = {.key_bytes = key_bytes, .image_bytes = size};
    char *content = malloc(key_bytes + size + 1);
    if (content == NULL) {
        return false;
    }
    memcpy(content, key, key_bytes);
    memcpy(content + key_bytes, image, size);
    memcpy(header.magic, magic, sizeof(magic));
    header.digest = digest_of(content, key_bytes + size);
    bool done =
        write_all(file, &header, sizeof(header)) && write_all(file, content, key_bytes + size);
    free(content);
    return done;
}

bool mu_gpu_cache_store(const char *folder, const char *name, const char *key, const char *image,
                        size_t size) {
    char path[MU_GPU_CACHE_PATH_MAX + 256];
    char temporary[sizeof(path) + 32];
    if (folder[0] == '\0' || size > IMAGE_BYTES_MAX || strlen(key) > KEY_BYTES_MAX ||
        snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) {
        return false;
    }
    make_folders(folder);
    snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
    int file = mkostemp(temporary, O_CLOEXEC);
    if (file < 0) {
        return false;
    }
    bool written = write_file(file, key, image, size);
    written = close(file) == 0 && written;
    if (written && rename(temporary, path) == 0) {
        return true;
    }
    unlink(temporary);
    return false;
}

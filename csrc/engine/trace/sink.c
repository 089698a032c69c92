#include "trace/sink.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SINK_MEMORY_START = 4096 };

MU_MUST_CHECK static int sink_init(struct mu_sink *sink, enum mu_sink_kind kind, size_t capacity,
                                   struct mu_error *err) {
    memset(sink, 0, sizeof(*sink));
    sink->kind = kind;
    sink->fd = -1;
    sink->data = malloc(capacity);
    if (sink->data == NULL) {
        return mu_error_no_memory(err, "buffer of a sink");
    }
    sink->capacity = capacity;
    return MU_OK;
}

int mu_sink_init_null(struct mu_sink *sink, size_t capacity, struct mu_error *err) {
    return sink_init(sink, MU_SINK_NULL, capacity, err);
}

int mu_sink_init_fd(struct mu_sink *sink, int fd, size_t capacity, struct mu_error *err) {
    int code = sink_init(sink, MU_SINK_FD, capacity, err);
    sink->fd = fd;
    return code;
}

int mu_sink_init_memory(struct mu_sink *sink, struct mu_error *err) {
    return sink_init(sink, MU_SINK_MEMORY, SINK_MEMORY_START, err);
}

int mu_sink_init_shared(struct mu_sink *sink, struct mu_shared_output *shared, size_t capacity,
                        struct mu_error *err) {
    int code = sink_init(sink, MU_SINK_SHARED, capacity, err);
    sink->shared = shared;
    return code;
}

void mu_sink_reset(struct mu_sink *sink) {
    free(sink->data);
    sink->data = NULL;
    sink->length = sink->capacity = 0;
}

int mu_shared_output_init(struct mu_shared_output *shared, struct mu_sink *target,
                          size_t skip_first, struct mu_error *err) {
    shared->target = target;
    shared->skip_first = skip_first;
    shared->any_written = 0;
    int failed = pthread_mutex_init(&shared->lock, NULL);
    if (failed != 0) {
        errno = failed;
        return mu_error_sys(err, "pthread_mutex_init", NULL);
    }
    return MU_OK;
}

void mu_shared_output_reset(struct mu_shared_output *shared) {
    pthread_mutex_destroy(&shared->lock);
}

uint64_t mu_sink_total(const struct mu_sink *sink) {
    return sink->handed_on + sink->length;
}

MU_MUST_CHECK static int write_all(struct mu_sink *sink, const char *data, size_t length) {
    while (length > 0) {
        ssize_t count = write(sink->fd, data, length);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return mu_error_sys(&sink->error, "write", NULL);
        }
        data += count;
        length -= (size_t)count;
    }
    return MU_OK;
}

MU_MUST_CHECK static int grow(struct mu_sink *sink, size_t size) {
    size_t capacity = sink->capacity;
    if (size > SIZE_MAX / 4 || sink->length > SIZE_MAX / 4) {
        return mu_error_no_memory(&sink->error, "buffer of a sink");
    }
    while (capacity - sink->length < size) {
        capacity *= 2;
    }
    char *data = realloc(sink->data, capacity);
    if (data == NULL) {
        return mu_error_no_memory(&sink->error, "buffer of a sink");
    }
    sink->data = data;
    sink->capacity = capacity;
    return MU_OK;
}

/* Bytes straight to the destination, past the buffer. */
MU_MUST_CHECK static int put(struct mu_sink *sink, const char *data, size_t length);

MU_MUST_CHECK static int put_shared(struct mu_sink *sink, const char *data, size_t length) {
    struct mu_shared_output *shared = sink->shared;
    pthread_mutex_lock(&shared->lock);
    size_t skip = shared->any_written || length == 0 ? 0 : shared->skip_first;
    shared->any_written |= length > 0;
    int code = put(shared->target, data + skip, length - skip);
    if (code != MU_OK) {
        sink->error = shared->target->error;
    }
    pthread_mutex_unlock(&shared->lock);
    return code;
}

MU_MUST_CHECK static int put(struct mu_sink *sink, const char *data, size_t length) {
    sink->handed_on += length;
    if (sink->error.code != MU_OK) {
        return sink->error.code;
    }
    switch (sink->kind) {
    case MU_SINK_FD:
        return write_all(sink, data, length);
    case MU_SINK_SHARED:
        return put_shared(sink, data, length);
    case MU_SINK_MEMORY:
        sink->handed_on -= length;
        mu_sink_write(sink, data, length);
        return sink->error.code;
    case MU_SINK_NULL:
        break;
    }
    return MU_OK;
}

MU_MUST_CHECK static int empty_buffer(struct mu_sink *sink) {
    if (sink->kind == MU_SINK_MEMORY || sink->length == 0) {
        return sink->error.code;
    }
    size_t length = sink->length;
    sink->length = 0;
    return put(sink, sink->data, length);
}

char *mu_sink_make_room(struct mu_sink *sink, size_t size) {
    mu_error_kept(empty_buffer(sink));
    if (sink->capacity - sink->length < size && grow(sink, size) != MU_OK) {
        return NULL;
    }
    return sink->data + sink->length;
}

void mu_sink_write(struct mu_sink *sink, const void *data, size_t length) {
    char *reserved = mu_sink_reserve(sink, length);
    if (reserved != NULL) {
        memcpy(reserved, data, length);
        mu_sink_commit(sink, reserved + length);
    }
}

int mu_sink_flush(struct mu_sink *sink, struct mu_error *err) {
    int code = empty_buffer(sink);
    if (code != MU_OK && err != NULL) {
        *err = sink->error;
    }
    return code;
}

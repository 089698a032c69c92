/* A sink writes bytes to a file descriptor, to growing memory, or nowhere.
 *
 * Bytes are collected in a buffer. Only mu_sink_reserve, mu_sink_write and mu_sink_flush pass the
 * buffer on. So the bytes of one reserve/commit pair stay together when several sinks, each on its
 * own thread, write to one `mu_shared_output`. Errors are sticky: after the first one, bytes are
 * counted and discarded, and every later flush returns the error again. A sink belongs to one
 * thread at a time. Sizes are bytes.
 */
#ifndef MU_SINK_H
#define MU_SINK_H

#include "base/error.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum mu_sink_kind { MU_SINK_NULL, MU_SINK_FD, MU_SINK_MEMORY, MU_SINK_SHARED };

struct mu_shared_output;

struct mu_sink {
    enum mu_sink_kind kind;
    int fd;                          /* borrowed */
    struct mu_shared_output *shared; /* borrowed */
    char *data;                      /* owned */
    size_t length, capacity;
    uint64_t handed_on; /* bytes that left the buffer */
    struct mu_error error;
};

/* One destination for many sinks. The first `skip_first` bytes of the first block that arrives are
 * left out: writers put a separator before each element of a list, and the first has none. */
struct mu_shared_output {
    pthread_mutex_t lock;
    struct mu_sink *target; /* borrowed; touched only with the lock held */
    size_t skip_first;
    int any_written;
};

MU_MUST_CHECK int mu_sink_init_null(struct mu_sink *sink, size_t capacity, struct mu_error *err);
MU_MUST_CHECK int mu_sink_init_fd(struct mu_sink *sink, int fd, size_t capacity,
                                  struct mu_error *err);
/* A sink whose buffer grows and is never written out: `data` and `length` are the content. */
MU_MUST_CHECK int mu_sink_init_memory(struct mu_sink *sink, struct mu_error *err);
MU_MUST_CHECK int mu_sink_init_shared(struct mu_sink *sink, struct mu_shared_output *shared,
                                      size_t capacity, struct mu_error *err);
void mu_sink_reset(struct mu_sink *sink); /* frees the buffer; does not flush */

MU_MUST_CHECK int mu_shared_output_init(struct mu_shared_output *shared, struct mu_sink *target,
                                        size_t skip_first, struct mu_error *err);
void mu_shared_output_reset(struct mu_shared_output *shared);

/* Bytes taken so far, buffered ones included. */
uint64_t mu_sink_total(const struct mu_sink *sink);

/* An error stays in `sink->error`; mu_sink_flush returns it. */
void mu_sink_write(struct mu_sink *sink, const void *data, size_t length);
MU_MUST_CHECK int mu_sink_flush(struct mu_sink *sink, struct mu_error *err);

char *mu_sink_make_room(struct mu_sink *sink, size_t size);

/* Room for `size` bytes, or NULL when memory is out. Follow with mu_sink_commit. */
static inline char *mu_sink_reserve(struct mu_sink *sink, size_t size) {
    if (size <= sink->capacity - sink->length) {
        return sink->data + sink->length;
    }
    return mu_sink_make_room(sink, size);
}

/* `end` is one past the last byte written into the reserved space. */
static inline void mu_sink_commit(struct mu_sink *sink, const char *end) {
    sink->length = (size_t)(end - sink->data);
}

#endif

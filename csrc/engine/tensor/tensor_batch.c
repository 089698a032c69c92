#include "tensor/tensor_batch.h"

#include <stdbool.h>

#include "base/parallel.h"

enum { GROUPS = 64 }; /* of small tensors, with about as many bytes each */

struct batch {
    const struct mu_tensor *const *tensors;
    int64_t count;
    mu_tensor_task task;
    void *context;
    int64_t shared_bytes; /* of the tensors that are shared out */
};

static bool is_shared_out(const struct mu_tensor *tensor) {
    return mu_tensor_bytes(tensor) <= MU_BATCH_SHARE_BYTES;
}

/* A tensor belongs to the group in which its first byte falls when all of them are in a row. */
static void do_groups(int64_t begin, int64_t end, void *context) {
    const struct batch *batch = context;
    int64_t group_bytes = batch->shared_bytes / GROUPS + 1, bytes_before = 0;
    for (int64_t i = 0; i < batch->count; i++) {
        const struct mu_tensor *tensor = batch->tensors[i];
        int64_t group = bytes_before / group_bytes;
        if (!is_shared_out(tensor)) {
            continue;
        }
        if (group >= begin && group < end) {
            batch->task(tensor, i, batch->context);
        }
        bytes_before += mu_tensor_bytes(tensor);
    }
}

/* Processes the small tensors on this thread alone. It makes no groups: that needs divisions, and
 * one division costs as much as a small task. */
static void do_shared(const struct batch *batch) {
    for (int64_t i = 0; i < batch->count; i++) {
        if (is_shared_out(batch->tensors[i])) {
            batch->task(batch->tensors[i], i, batch->context);
        }
    }
}

void mu_tensors_each(const struct mu_tensor *const *tensors, int64_t count, mu_tensor_task task,
                     void *context) {
    struct batch batch = {.tensors = tensors, .count = count, .task = task, .context = context};
    for (int64_t i = 0; i < count; i++) {
        if (is_shared_out(tensors[i])) {
            batch.shared_bytes += mu_tensor_bytes(tensors[i]);
        } else {
            task(tensors[i], i, context);
        }
    }
    if (batch.shared_bytes > MU_BATCH_SHARE_BYTES) {
        mu_parallel_for(GROUPS, 1, do_groups, &batch);
    } else {
        do_shared(&batch);
    }
}

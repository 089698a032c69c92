#include "tensor/tensor_batch.h"
#include "tests/check.h"

enum { COUNT = 300 };

static struct mu_tensor tensors[COUNT];
static const struct mu_tensor *views[COUNT];
static int64_t sizes[COUNT];

static void note(const struct mu_tensor *tensor, int64_t index, void *context) {
    int64_t *noted = context;
    CHECK(tensor == views[index]);
    noted[index] += tensor->elements;
}

/* Without torch everything is done by the caller, once. */
static void check_each(int64_t count) {
    int64_t noted[COUNT] = {0};
    mu_tensors_each(views, count, note, noted);
    for (int64_t i = 0; i < COUNT; i++) {
        CHECK_INT(noted[i], i < count ? sizes[i] : 0);
    }
}

int main(void) {
    static const char memory[1];
    for (int i = 0; i < COUNT; i++) {
        sizes[i] = i % 50 == 7 ? 3 * MU_BATCH_SHARE_BYTES : 1 + i * 977 % 20000;
        tensors[i] = (struct mu_tensor){.data = memory,
                                        .shape = &sizes[i],
                                        .elements = sizes[i],
                                        .ndim = 1,
                                        .dtype = MU_DTYPE_UINT8};
        views[i] = &tensors[i];
    }
    check_each(0);
    check_each(1);
    check_each(8);
    check_each(COUNT);
    return check_report();
}

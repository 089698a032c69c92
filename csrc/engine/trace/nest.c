#include "trace/nest.h"

#include <string.h>

static void melt_oldest(struct mu_nest *nest) {
    nest->kept[0].end = nest->kept[1].end;
    memmove(&nest->kept[1], &nest->kept[2], (MU_NEST_MAX - 2) * sizeof(nest->kept[0]));
    nest->count--;
}

int mu_nest_accept(struct mu_nest *nest, int64_t begin, int64_t end) {
    int left = nest->count;
    while (left > 0 && nest->kept[left - 1].begin >= begin && nest->kept[left - 1].end <= end) {
        if (nest->kept[left - 1].begin == begin) {
            return 0;
        }
        left--;
    }
    if (left > 0 && nest->kept[left - 1].end > begin) {
        return 0;
    }
    nest->count = left;
    if (nest->count == MU_NEST_MAX) {
        melt_oldest(nest);
    }
    nest->kept[nest->count++] = (struct mu_interval){begin, end};
    return 1;
}

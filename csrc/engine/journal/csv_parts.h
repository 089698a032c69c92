/* The CSV files of one process: the current one, and the parts that it rotated away. */
#ifndef MU_CSV_PARTS_H
#define MU_CSV_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { MU_CSV_PART_PATH_BYTES = 4096 + 2048 };

struct mu_csv_parts {
    const char *directory; /* borrowed */
    const char *stem;      /* borrowed: profile_rank_<R>[.wK] */
    uint64_t *numbers;     /* owned: of the parts `<stem>.part<NNNN>.csv`, the newest first */
    size_t count;
};

/* The number in `<stem>.part<NNNN>.csv`, 0 for any other name. */
uint64_t mu_csv_part_number(const char *stem, const char *name);

/* The path of such a part; `path` has `size` bytes. */
void mu_csv_part_path(const char *directory, const char *stem, uint64_t number, char *path,
                      size_t size);

MU_MUST_CHECK int mu_csv_parts_find(struct mu_csv_parts *parts, const char *directory,
                                    const char *stem, struct mu_error *err);
void mu_csv_parts_free(struct mu_csv_parts *parts);

/* How many parts were rotated away before the current file, as a journal's commit counts them. */
static inline uint64_t mu_csv_parts_before_current(const struct mu_csv_parts *parts) {
    return parts->count == 0 ? 0 : parts->numbers[0];
}

/* The path of the current file for 0, of the newest part for 1, and so on up to `count`. */
void mu_csv_parts_path(const struct mu_csv_parts *parts, size_t index,
                       char path[MU_CSV_PART_PATH_BYTES]);

/* The bytes of a CSV up to the end of its last whole row. What follows is a torn row, or zeros that
 * a power loss left there. */
MU_MUST_CHECK int mu_csv_whole_bytes(int fd, uint64_t size, uint64_t *bytes, struct mu_error *err);

/* MU_ERR_LIMIT for the bytes of a file that are next to all a hole: it takes no disk, and as long
 * to read as if it were full. */
MU_MUST_CHECK int mu_csv_check_filled(int fd, uint64_t size, struct mu_error *err);

#endif

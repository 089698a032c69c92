#include "journal/csv_parts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/read_at.h"

enum {
    TAIL_BYTES = 64 * 1024,
    PIECES_MAX = 10000, /* of a file between its holes that are counted */
    HOLES_TIMES = 50,   /* as for files that Python reads: core/trusted_open.py */
    HOLES_FREE = 64 << 20,
};

uint64_t mu_csv_part_number(const char *stem, const char *name) {
    size_t length = strlen(stem);
    unsigned long long number;
    int used = 0;
    if (strncmp(name, stem, length) != 0 ||
        sscanf(name + length, ".part%llu.csv%n", &number, &used) != 1 || used == 0 ||
        name[length + (size_t)used] != '\0') {
        return 0;
    }
    return number;
}

MU_MUST_CHECK static int add_number(struct mu_csv_parts *parts, uint64_t number,
                                    struct mu_error *err) {
    uint64_t *numbers = realloc(parts->numbers, (parts->count + 1) * sizeof(*numbers));
    if (numbers == NULL) {
        return mu_error_no_memory(err, "list of CSV parts");
    }
    parts->numbers = numbers;
    numbers[parts->count++] = number;
    return MU_OK;
}

static int newest_first(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left < right) - (left > right);
}

int mu_csv_parts_find(struct mu_csv_parts *parts, const char *directory, const char *stem,
                      struct mu_error *err) {
    *parts = (struct mu_csv_parts){.directory = directory, .stem = stem};
    DIR *opened = opendir(directory);
    if (opened == NULL) {
        return errno == ENOENT ? MU_OK : mu_error_sys(err, "open directory", directory);
    }
    int code = MU_OK;
    for (struct dirent *entry; code == MU_OK && (entry = readdir(opened)) != NULL;) {
        uint64_t number = mu_csv_part_number(stem, entry->d_name);
        code = number == 0 ? MU_OK : add_number(parts, number, err);
    }
    closedir(opened);
    if (parts->count > 0) {
        qsort(parts->numbers, parts->count, sizeof(*parts->numbers), newest_first);
    }
    return code;
}

void mu_csv_parts_free(struct mu_csv_parts *parts) {
    free(parts->numbers);
    memset(parts, 0, sizeof(*parts));
}

void mu_csv_part_path(const char *directory, const char *stem, uint64_t number, char *path,
                      size_t size) {
    snprintf(path, size, "%s/%s.part%04llu.csv", directory, stem, (unsigned long long)number);
}

void mu_csv_parts_path(const struct mu_csv_parts *parts, size_t index,
                       char path[MU_CSV_PART_PATH_BYTES]) {
    if (index == 0) {
        snprintf(path, MU_CSV_PART_PATH_BYTES, "%s/%s.csv", parts->directory, parts->stem);
        return;
    }
    mu_csv_part_path(parts->directory, parts->stem, parts->numbers[index - 1], path,
                     MU_CSV_PART_PATH_BYTES);
}

/* Where the last byte ends that is no hole; all of the file where nobody knows. `filled` counts the
 * bytes that are none. */
static uint64_t end_of_data(int fd, uint64_t size, uint64_t *filled) {
    off_t place = lseek(fd, 0, SEEK_CUR);
    uint64_t end = 0;
    *filled = 0;
    for (int piece = 0; end < size && piece < PIECES_MAX; piece++) {
        off_t begin = lseek(fd, (off_t)end, SEEK_DATA);
        off_t hole = begin < 0 ? -1 : lseek(fd, begin, SEEK_HOLE);
        if (hole < 0) {
            *filled = begin < 0 && errno == ENXIO ? *filled : size;
            end = begin < 0 && errno == ENXIO ? end : size;
            break;
        }
        *filled += (uint64_t)(hole - begin);
        end = (uint64_t)hole;
    }
    if (place >= 0 && lseek(fd, place, SEEK_SET) < 0) {
        return size;
    }
    return end < size ? end : size;
}

int mu_csv_check_filled(int fd, uint64_t size, struct mu_error *err) {
    uint64_t filled;
    if (size <= HOLES_FREE) {
        return MU_OK;
    }
    (void)end_of_data(fd, size, &filled);
    return size - HOLES_FREE <= HOLES_TIMES * filled
               ? MU_OK
               : mu_error_set(err, MU_ERR_LIMIT,
                              "of the %llu bytes of the CSV only %llu are on the disk",
                              (unsigned long long)size, (unsigned long long)filled);
}

int mu_csv_whole_bytes(int fd, uint64_t size, uint64_t *bytes, struct mu_error *err) {
    char *block = malloc(TAIL_BYTES);
    if (block == NULL) {
        return mu_error_no_memory(err, "tail of the CSV");
    }
    int code = MU_OK;
    *bytes = 0;
    for (uint64_t upper = size; upper > 0 && *bytes == 0;) {
        uint64_t lower = upper > TAIL_BYTES ? upper - TAIL_BYTES : 0;
        ssize_t got = mu_read_at(fd, block, (size_t)(upper - lower), lower);
        if (got < 0) {
            code = mu_error_sys(err, "read the CSV", NULL);
            break;
        }
        const char *newline = memrchr(block, '\n', (size_t)got);
        if (newline != NULL) {
            *bytes = lower + (uint64_t)(newline - block) + 1;
        }
        uint64_t filled;
        upper = upper == size ? end_of_data(fd, lower, &filled) : lower;
    }
    free(block);
    return code;
}

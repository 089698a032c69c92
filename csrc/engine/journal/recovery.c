#include "journal/recovery.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/own_files.h"
#include "base/read_at.h"
#include "journal/csv_parts.h"
#include "journal/doubtful_rows.h"
#include "journal/journal_image.h"
#include "journal/row_set.h"

enum { WINDOW_BYTES = 256 * 1024 };

static const int64_t same_stage_ns = 1000000000; /* between two rows of one process */
static const int64_t same_doubtful_ns = 5000000; /* of the clock that old anchors tell */

/* One CSV file, open. */
struct csv_file {
    int fd;             /* owned; -1: there is none */
    uint64_t bytes;     /* of whole rows */
    uint64_t committed; /* of them, those that the journal's commit counts */
};

static void close_csv(struct csv_file *file) {
    if (file->fd >= 0) {
        close(file->fd);
    }
    file->fd = -1;
}

/* The file with that index among the parts. */
MU_MUST_CHECK static int open_csv(const struct mu_csv_parts *parts, size_t index,
                                  const struct mu_journal_image *image, struct csv_file *file,
                                  struct mu_error *err) {
    char path[MU_CSV_PART_PATH_BYTES];
    struct stat status;
    mu_csv_parts_path(parts, index, path);
    *file = (struct csv_file){.fd = mu_open_regular(path, O_RDONLY, 0)};
    if (file->fd < 0) {
        return errno == ENOENT || mu_is_of_others(errno) ? MU_OK : mu_error_sys(err, "open", path);
    }
    int code = fstat(file->fd, &status) != 0
                   ? mu_error_sys(err, "stat", path)
                   : mu_csv_whole_bytes(file->fd, (uint64_t)status.st_size, &file->bytes, err);
    if (code == MU_OK) {
        code = mu_csv_check_filled(file->fd, file->bytes, err);
    }
    if (code != MU_OK) {
        close_csv(file);
        return code;
    }
    uint64_t before =
        index == 0 ? mu_csv_parts_before_current(parts) : parts->numbers[index - 1] - 1;
    file->committed = before < image->csv_part   ? file->bytes
                      : before > image->csv_part ? 0
                                                 : image->csv_bytes;
    return MU_OK;
}

/* A look at the CSV from its end backwards. */
struct look {
    const struct mu_csv_parts *parts;
    const struct mu_journal_image *image;
    struct mu_row_set *set; /* NULL: only what the CSV says beyond the commit */
    struct mu_row_rule rule;
    struct mu_rows_there there;
    bool in_committed; /* rows of the set are among those that the commit counts */
    bool misfit;       /* the commit counts bytes that do not end a row */
    bool begins_whole; /* the oldest file has its first row */
};

/* The first row that begins at or after `at` in a block whose first byte may be within a row. A
 * line end may be in a name: a row begins with a time. */
static size_t first_row(const char *block, size_t length) {
    for (const char *at = block; (at = memchr(at, '\n', length - (size_t)(at - block))) != NULL;) {
        at++;
        size_t left = length - (size_t)(at - block);
        size_t digits = 0;
        while (digits < left && ((at[digits] >= '0' && at[digits] <= '9') || at[digits] == '-')) {
            digits++;
        }
        if (left == 0 || (digits > 0 && digits < left && at[digits] == '.')) {
            return (size_t)(at - block);
        }
    }
    return length;
}

MU_MUST_CHECK static int read_block(int fd, char *to, size_t bytes, uint64_t offset,
                                    struct mu_error *err) {
    ssize_t got = mu_read_at(fd, to, bytes, offset);
    if (got < 0) {
        return mu_error_sys(err, "read", "the profile CSV");
    }
    return (size_t)got == bytes ? MU_OK
                                : mu_error_set(err, MU_ERR_IO, "the profile CSV became shorter");
}

/* The window of the file that ends at *upper, a row's end, and begins at or above `lower`, one as
 * well. Moves *upper to its begin. */
MU_MUST_CHECK static int look_at_window(struct look *look, int fd, char *block, uint64_t lower,
                                        uint64_t *upper, struct mu_error *err) {
    uint64_t bytes = *upper - lower < WINDOW_BYTES ? *upper - lower : WINDOW_BYTES;
    uint64_t from = *upper - bytes;
    int code = read_block(fd, block, (size_t)bytes, from, err);
    if (code != MU_OK) {
        return code;
    }
    size_t skip = from == lower ? 0 : first_row(block, (size_t)bytes);
    *upper = skip < bytes ? from + skip : from;
    struct mu_csv_input piece = {
        .name = "the profile CSV", .fd = -1, .data = block + skip, .length = (size_t)bytes - skip};
    return skip < bytes ? mu_row_set_compare(look->set, &piece, &look->rule, &look->there, err)
                        : MU_OK;
}

/* From `upper` down to `lower`; with `older`, no further than to rows that are older than all of
 * the set. */
MU_MUST_CHECK static int look_back(struct look *look, const struct csv_file *file, uint64_t lower,
                                   uint64_t upper, bool *older, struct mu_error *err) {
    char *block = malloc(WINDOW_BYTES);
    int code = block == NULL ? mu_error_no_memory(err, "block of the CSV") : MU_OK;
    while (code == MU_OK && upper > lower && !(older != NULL && *older)) {
        look->there.newest_ns = INT64_MIN;
        code = look_at_window(look, file->fd, block, lower, &upper, err);
        if (older != NULL) {
            *older = look->there.newest_ns != INT64_MIN &&
                     look->there.newest_ns < look->set->first_ns - same_stage_ns;
        }
    }
    free(block);
    return code;
}

/* The rows beyond the commit first: those of the process are rows of the set. Their times may
 * differ, for the offset of the clock may have changed since the commit. */
MU_MUST_CHECK static int look_at_file(struct look *look, const struct csv_file *file, bool *older,
                                      struct mu_error *err) {
    uint64_t committed = file->committed < file->bytes ? file->committed : file->bytes;
    char last = '\n';
    int code = committed > 0 && file->committed <= file->bytes
                   ? read_block(file->fd, &last, 1, committed - 1, err)
                   : MU_OK;
    if (code != MU_OK) {
        return code;
    }
    bool fresh = file->bytes <= mu_csv_header_length; /* the user removed the one before */
    look->misfit = look->misfit || last != '\n' || (file->committed > file->bytes && !fresh);
    look->rule.takes_events = true;
    look->rule.stage_ns = look->rule.event_ns = MU_ANY_TIME;
    code = look_back(look, file, last == '\n' ? committed : 0, file->bytes, NULL, err);
    if (code != MU_OK || look->set == NULL || last != '\n') {
        return code;
    }
    uint64_t found = look->there.found;
    look->rule.event_ns = 0; /* one of this very time is in a page that is older than the commit */
    look->rule.stage_ns = same_stage_ns;
    code = look_back(look, file, 0, committed, older, err);
    look->in_committed = look->in_committed || look->there.found > found;
    return code;
}

MU_MUST_CHECK static int look_at_files(struct look *look, struct mu_error *err) {
    bool older = false;
    int code = MU_OK;
    for (size_t i = 0; code == MU_OK && !older && i <= look->parts->count; i++) {
        struct csv_file file;
        code = open_csv(look->parts, i, look->image, &file, err);
        if (code == MU_OK && file.fd >= 0) {
            code = look_at_file(look, &file, &older, err);
            older = older || (look->set == NULL && file.committed > 0);
        }
        close_csv(&file);
    }
    return code;
}

/* After a kill: the records that the commit leaves, less those that a drain wrote and did not live
 * to commit, or that a recovery wrote which was killed. Says in the recovery when the files cannot
 * be those of a kill. */
MU_MUST_CHECK static int recover_after_kill(struct mu_journal_image *image,
                                            const struct mu_csv_parts *parts,
                                            struct mu_recovery *recovery, struct mu_error *err) {
    struct mu_row_set set = {0};
    struct mu_recovered recovered = {0};
    struct look look = {.parts = parts, .image = image, .rule = {.pid = image->header->pid}};
    mu_rows_there_init(&look.there);
    int code = look_at_files(&look, err);
    image->reported_drops += image->reported_drops == 0 ? 0 : look.there.reported_drops;
    image->reported_unplaced += image->reported_unplaced == 0 ? 0 : look.there.reported_unplaced;
    if (look.there.has_offset) { /* the rows after it, which were not all written, have it, too */
        image->user_offset_ns = look.there.offset_ns;
    }
    if (code == MU_OK) {
        code = mu_journal_image_rows(image, &recovery->writer, &recovered, err);
    }
    if (code == MU_OK) {
        code = mu_row_set_init(&set, &recovery->writer, err);
    }
    if (code == MU_OK && set.count > 0) {
        look.set = &set;
        code = look_at_files(&look, err);
    }
    struct mu_rows_kept kept = {.mark = NULL};
    recovery->doubtful =
        look.misfit || look.in_committed || recovered.bad_records > 0 || recovered.unnamed > 0;
    if (code == MU_OK && !recovery->doubtful && set.count > 0) {
        code = mu_row_set_keep(&set, &recovery->writer, &kept, err);
        recovery->rows = kept.rows;
    }
    mu_row_set_reset(&set);
    return code;
}

/* A power loss may leave zeros where a file began; a process that went on with it wrote the header
 * over the first of them. */
MU_MUST_CHECK static int look_at_beginning(struct look *look, const struct csv_file *file,
                                           struct mu_error *err) {
    char first = '\0', behind_header = '\0';
    int code = file->bytes > mu_csv_header_length ? read_block(file->fd, &first, 1, 0, err) : MU_OK;
    if (code == MU_OK && first != '\0') {
        code = read_block(file->fd, &behind_header, 1, mu_csv_header_length, err);
    }
    look->begins_whole = behind_header != '\0';
    return code;
}

/* All of all files. Without a set only what they say about themselves. */
MU_MUST_CHECK static int compare_with_all(struct look *look, struct mu_error *err) {
    int code = MU_OK;
    bool oldest = true;
    for (size_t i = look->parts->count + 1; code == MU_OK && i-- > 0;) { /* the oldest first */
        struct csv_file file;
        code = open_csv(look->parts, i, look->image, &file, err);
        if (code == MU_OK && file.fd >= 0 && oldest) {
            code = look_at_beginning(look, &file, err);
            oldest = false;
        }
        if (code == MU_OK && file.fd >= 0) {
            struct mu_csv_input piece = {
                .name = "the profile CSV", .fd = file.fd, .limit = file.bytes};
            code = mu_row_set_compare(look->set, &piece, &look->rule, &look->there, err);
        }
        close_csv(&file);
    }
    return code;
}

/* Rows of parts that were removed because they were the oldest. Where the oldest file that is left
 * has lost its beginning, they may as well have been there. */
static void leave_removed(struct mu_row_set *set, const struct look *look) {
    const struct mu_csv_parts *parts = look->parts;
    bool removed =
        parts->count == 0 ? look->image->csv_part > 0 : parts->numbers[parts->count - 1] > 1;
    for (size_t i = 0; removed && look->begins_whole && i < set->count; i++) {
        set->rows[i].is_there = set->rows[i].is_there || set->rows[i].at_ns < look->there.oldest_ns;
    }
}

/* When the process last said that it lived; now, when nothing is left of that. */
static int64_t last_known_ns(const struct mu_journal_image *image) {
    int64_t beat_ns = atomic_load(&image->header->heartbeat_real_ns), anchor_ns;
    if (mu_journal_image_last_ns(image, &anchor_ns)) {
        return anchor_ns;
    }
    return beat_ns > 0 ? beat_ns : mu_clock_ns(CLOCK_REALTIME);
}

static void say_doubtful(const struct mu_journal_image *image, bool other_boot,
                         struct mu_recovery *recovery) {
    char metadata[128];
    snprintf(metadata, sizeof(metadata), "rows=%llu,unproven=%llu,reason=%s",
             (unsigned long long)recovery->rows, (unsigned long long)recovery->unproven,
             other_boot ? "other_boot" : "mixed_pages");
    mu_csv_write_own(&recovery->writer, last_known_ns(image), image->header->pid,
                     "my_utils.doubtful", metadata);
}

/* After a power loss. */
MU_MUST_CHECK static int recover_doubtful(struct mu_journal_image *image,
                                          const struct mu_csv_parts *parts, bool other_boot,
                                          struct mu_recovery *recovery, struct mu_error *err) {
    static const _Atomic uint32_t all_strings = MU_STRINGS_MAX;
    struct mu_row_set set = {0};
    struct look look = {.parts = parts,
                        .image = image,
                        .rule = {.stage_ns = MU_ANY_TIME,
                                 .event_ns = same_doubtful_ns,
                                 .takes_events = true,
                                 .pid = image->header->pid}};
    struct mu_rows_kept kept = {.mark = MU_DOUBTFUL_MARK, .needs_proof = true};
    image->strings.count = &all_strings;
    image->strings.may_lack_bytes = true;
    image->chunk_count = image->whole_chunks;
    recovery->doubtful = true;
    recovery->writer.length = 0;
    mu_rows_there_init(&look.there);
    int code = mu_doubtful_rows(image, &recovery->writer, &recovery->unproven, err);
    size_t proven = recovery->writer.length;
    if (code == MU_OK) {
        code = mu_doubtful_rows_behind(image, &recovery->writer, &recovery->unproven, err);
    }
    if (code == MU_OK) {
        code = mu_row_set_init(&set, &recovery->writer, err);
    }
    if (code == MU_OK) {
        code = compare_with_all(&look, err);
    }
    if (code == MU_OK) {
        mu_row_set_unproven_from(&set, proven);
        look.set = &set;
        look.rule.event_ns = look.there.clock_changed ? MU_ANY_TIME : same_doubtful_ns;
        code = compare_with_all(&look, err);
    }
    if (code == MU_OK) {
        leave_removed(&set, &look);
        code = mu_row_set_keep(&set, &recovery->writer, &kept, err);
    }
    if (code == MU_OK) {
        recovery->rows = kept.rows;
        recovery->unproven += kept.unproven;
        say_doubtful(image, other_boot, recovery);
    }
    if (look.there.last_attempt > recovery->last_attempt) {
        recovery->last_attempt = look.there.last_attempt;
    }
    mu_row_set_reset(&set);
    return code;
}

int mu_journal_recover(struct mu_journal_image *image, const char *directory, const char *stem,
                       struct mu_recovery *recovery, struct mu_error *err) {
    struct mu_csv_parts parts;
    memset(recovery, 0, sizeof(*recovery));
    mu_csv_writer_init(&recovery->writer);
    recovery->last_attempt = image->header->attempt;
    int code = mu_csv_parts_find(&parts, directory, stem, err);
    bool other_boot = mu_journal_is_of_other_boot(image->header);
    recovery->doubtful = other_boot || mu_journal_image_is_mixed(image);
    if (code == MU_OK && !recovery->doubtful) {
        code = recover_after_kill(image, &parts, recovery, err);
    }
    if (code == MU_OK && recovery->doubtful) {
        code = recover_doubtful(image, &parts, other_boot, recovery, err);
    }
    mu_csv_parts_free(&parts);
    return code;
}

void mu_recovery_free(struct mu_recovery *recovery) {
    mu_csv_writer_free(&recovery->writer);
}

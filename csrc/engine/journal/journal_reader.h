/* Reading journals, of dead processes and of living ones.
 *
 * Nothing in a journal is trusted: numbers are checked against the bytes that exist, and invalid
 * records are skipped and counted. Times are Unix nanoseconds with the process's time offset in
 * them.
 */
#ifndef MU_JOURNAL_READER_H
#define MU_JOURNAL_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "journal/journal_image.h"

/* Opens an image over bytes in memory, which the caller keeps. MU_ERR_FORMAT when they are no
 * journal, MU_ERR_VERSION for a newer one. */
MU_MUST_CHECK int mu_journal_image_open(struct mu_journal_image *image, const uint8_t *bytes,
                                        size_t size, struct mu_error *err);

/* Reads the used parts of a file, which its process may change meanwhile: the commit, the records
 * and the open stages of the image fit together. */
MU_MUST_CHECK int mu_journal_image_read(struct mu_journal_image *image, const char *path,
                                        struct mu_error *err);

/* The same for a file that belongs to `user` and is not a link; MU_ERR_IO for any other. */
MU_MUST_CHECK int mu_journal_image_read_own(struct mu_journal_image *image, const char *path,
                                            uid_t user, struct mu_error *err);

/* The same for the journal of a process that has ended: reads the whole file. `user` as above, NULL
 * for a file of anybody. */
MU_MUST_CHECK int mu_journal_image_read_dead(struct mu_journal_image *image, const char *path,
                                             const uid_t *user, struct mu_error *err);

void mu_journal_image_close(struct mu_journal_image *image);

/* Whether the journal at `path` goes on in another file, which is a journal: its process was killed
 * before it removed this one. */
bool mu_journal_has_moved(const char *path);

/* Removes the file that the journal at `path` came from, if its process was killed before it did
 * so. Must be called before anybody removes the journal. `user_of` returns the owner of our files
 * beside a path. */
void mu_journal_remove_left(const struct mu_journal_image *image, const char *path,
                            uid_t (*user_of)(const char *path));

/* Whether the journal was written before this machine was last started, or on another one: each of
 * its pages may be of another moment then. */
bool mu_journal_is_of_other_boot(const struct mu_journal_header *header);

/* Whether a living process holds the journal. */
bool mu_journal_is_held(const char *path);

struct mu_recovered {
    uint64_t rows;
    uint64_t open_stages; /* that never ended */
    uint64_t bad_records;
    uint64_t unnamed; /* records whose names are not among the strings */
};

/* Writes the rows that are not in the CSV yet: records after the last commit, the STARTs of stages
 * that were open, and how many records were lost that no row reports. MU_ERR_STATE when the process
 * overran the image. */
MU_MUST_CHECK int mu_journal_image_rows(struct mu_journal_image *image,
                                        struct mu_csv_writer *writer,
                                        struct mu_recovered *recovered, struct mu_error *err);

enum { MU_CSV_STEM_BYTES = 129 };

/* The name of the process's CSV without its suffix; empty when it is none. */
void mu_journal_image_csv_stem(const struct mu_journal_image *image, char stem[MU_CSV_STEM_BYTES]);

/* The CSV file of the image's commit: beside the journal when it exists there, otherwise in the
 * directory that the journal names. */
void mu_journal_image_csv_path(const struct mu_journal_image *image, const char *journal_path,
                               char *path, size_t size);

/* How many bytes of that CSV were there when the image of a living process was read: those that the
 * commit counts. All bytes when the commit does not fit the file. */
MU_MUST_CHECK int mu_journal_image_csv_prefix(const struct mu_journal_image *image, int csv_fd,
                                              uint64_t *bytes, struct mu_error *err);

/* Records that were lost because a ring was full. */
uint64_t mu_journal_image_dropped(const struct mu_journal_image *image);

struct mu_seen_stage {
    const char *name; /* in the image */
    size_t name_length;
    uint64_t node;
    int64_t step;
    int64_t start_ns;
    int64_t end_ns; /* of a finished stage */
};

enum { MU_SEEN_LAST_MAX = 16 };

struct mu_seen_thread {
    uint32_t tid;
    int64_t step;
    const char *tag;
    size_t tag_length;
    const char *thread_name;
    size_t thread_name_length;
    int depth; /* open stages in `open`, in the order of their starts */
    struct mu_seen_stage open[MU_OPEN_MAX];
    int last_count; /* finished stages in `last`, newest first */
    struct mu_seen_stage last[MU_SEEN_LAST_MAX];
};

/* The present stages of a chunk's thread. False when no thread owns the chunk. */
bool mu_journal_image_thread(struct mu_journal_image *image, uint32_t chunk,
                             struct mu_seen_thread *thread);

#endif

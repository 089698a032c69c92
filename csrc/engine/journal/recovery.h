/* What the process of a journal recorded and did not write.
 *
 * The CSV counts as it is on the disk: no row of it is taken back, and none is written again. After
 * a kill the journal is as the process left it, for both files are in the kernel's memory. After
 * another boot each of its pages, and of those of the CSV, may be of another moment
 * (doubtful_rows.h); then whatever the journal holds is compared with all of the CSV, and the rows
 * that are not there are marked with `doubtful=1`. A row `my_utils.doubtful` says so.
 */
#ifndef MU_RECOVERY_H
#define MU_RECOVERY_H

#include "csv/csv_writer.h"
#include "journal/journal_reader.h"

struct mu_recovery {
    struct mu_csv_writer writer; /* rows to be appended to the CSV */
    uint64_t rows;               /* of them, records' own */
    bool doubtful;
    uint64_t unproven;     /* records that are in no CSV and cannot be made rows, when doubtful */
    uint32_t last_attempt; /* of the journal, and of the CSV where it was read */
};

/* The process has ended, and mu_journal_image_read_dead has read its journal. `directory` and
 * `stem` name its CSV files; nobody else may write to them. The caller frees the recovery, also
 * after an error. */
MU_MUST_CHECK int mu_journal_recover(struct mu_journal_image *image, const char *directory,
                                     const char *stem, struct mu_recovery *recovery,
                                     struct mu_error *err);
void mu_recovery_free(struct mu_recovery *recovery);

#endif

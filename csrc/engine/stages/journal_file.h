/* Where the journal of a recorder lies, and what leads there. While there are files it is one
 * beside the CSV; where the log directory is on a network, it is in a local one, and a pointer file
 * in the log directory names it. Whoever calls holds recorder->drain_lock. */
#ifndef MU_JOURNAL_FILE_H
#define MU_JOURNAL_FILE_H

#include <stdbool.h>

#include "base/error.h"
#include "journal/journal_format.h"
#include "stages/state.h"

/* The files that a recorder is about to use. */
struct mu_next_files {
    struct mu_recorder *recorder;
    const struct mu_output_config *config;
    const struct mu_output *output;
    const struct mu_open_report *report;
};

/* The name of the host in rows and journals. */
const char *mu_journal_file_host(const struct mu_output_config *config);

/* Writes into the header whose journal it is, and which files belong to it. */
void mu_journal_file_identify(const struct mu_next_files *next, struct mu_journal_header *header);

/* Moves the journal into a file, unless it is in one. Without a file rows are still written, but a
 * kill loses the records that were not drained; the report has a field for that. */
void mu_journal_file_attach(const struct mu_next_files *now, struct mu_open_report *report);

/* Moves the journal from file to file: were it in memory meanwhile, a kill would lose what is
 * recorded then. False where that cannot be: it goes through memory. */
bool mu_journal_file_move(const struct mu_next_files *next);

/* Moves the journal into memory, and removes its file. */
MU_MUST_CHECK int mu_journal_file_leave(struct mu_recorder *recorder, struct mu_error *err);

#endif

/* Adoption: records that a dead process did not write are put into its CSV, before a new process of
 * the same rank writes there. */
#ifndef MU_ADOPT_H
#define MU_ADOPT_H

#include <stdint.h>

#include "base/error.h"
#include "profile_files/output.h"

struct mu_adopted {
    uint64_t journals;
    uint64_t rows;
    uint64_t foreign;       /* journals that stay, for they are not ours */
    uint64_t unreadable;    /* journals that were renamed */
    uint64_t doubtful;      /* journals of another boot, or with pages of several moments */
    uint64_t doubtful_rows; /* that were added from them */
    uint64_t unproven;      /* records of theirs that were not; their journals were renamed, too */
    uint32_t last_attempt;  /* of the newest that was adopted */
};

/* Adopts every journal of `label` in the output's directory, and those that pointer files there
 * name, unless a living process holds them or they belong to another user. Whoever wrote a pointer
 * file, it counts whose journal it names. The output holds the CSV. Each journal is removed once
 * its rows are written. If the process is killed in between, the next adoption finds in the CSV
 * which rows are written already (journal/recovery.h). */
MU_MUST_CHECK int mu_adopt_journals(struct mu_output *output, const char *label,
                                    struct mu_adopted *adopted, struct mu_error *err);

#endif

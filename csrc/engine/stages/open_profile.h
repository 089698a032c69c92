/* Opens, moves and closes the files that a recorder writes, and adopts the journals of dead
 * processes.
 *
 * Functions are thread-safe unless they say "nobody may record meanwhile". The binding ensures that
 * by keeping the GIL; or, where files are opened and closed, by `gil`, which takes the GIL for the
 * moments that need it and not over any file operation.
 */
#ifndef MU_OPEN_PROFILE_H
#define MU_OPEN_PROFILE_H

#include "base/error.h"
#include "stages/state.h"

/* Sets the destination of rows from now on; see output.h. Records that are not written yet go
 * there, too. On failure the recorder goes on as before. `gil` is NULL where nobody may record
 * meanwhile. */
MU_MUST_CHECK int mu_recorder_open_with(struct mu_recorder *recorder,
                                        const struct mu_output_config *config,
                                        const struct mu_alone *gil, struct mu_open_report *report,
                                        struct mu_error *err);

/* The same; nobody may record meanwhile. */
MU_MUST_CHECK int mu_recorder_open(struct mu_recorder *recorder,
                                   const struct mu_output_config *config,
                                   struct mu_open_report *report, struct mu_error *err);

/* Writes everything, and keeps later records in memory. Waits four seconds at most for an output
 * that does not answer. `gil` as above. */
MU_MUST_CHECK int mu_recorder_close_with(struct mu_recorder *recorder, const struct mu_alone *gil,
                                         struct mu_error *err);

/* The same; nobody may record meanwhile. */
MU_MUST_CHECK int mu_recorder_close(struct mu_recorder *recorder, struct mu_error *err);

#endif

/* What everybody may read of the output, at any time and without waiting for a file.
 *
 * The output itself belongs to the holder of the drain's lock, which is held over file operations
 * that may hang. So its state is copied, under the registry's lock, whenever it has changed.
 */
#ifndef MU_OUTPUT_STATE_H
#define MU_OUTPUT_STATE_H

#include "base/error.h"
#include "stages/state.h"

/* Copies the state for readers. The caller holds the drain's lock, and not the registry's. */
void mu_output_state_publish_lock_held(struct mu_recorder *recorder);

/* The state that was published last. A forked child calls mu_recorder_check_fork before. */
void mu_recorder_output_state(struct mu_recorder *recorder, struct mu_output_state *state);

/* MU_ERR_STATE, with the file that does not answer. */
MU_MUST_CHECK int mu_output_state_no_answer(struct mu_recorder *recorder, struct mu_error *err);

/* The path of the CSV that was opened last; it may be closed. */
void mu_recorder_opened_path(struct mu_recorder *recorder, char path[MU_PATH_BYTES]);

#endif

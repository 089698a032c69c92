/* Corrections of what a thread has recorded, as long as no drain has written it.
 *
 * Code that times a training knows some things late: whether a stage was one at all, and to which
 * step it belonged. The thread that owns the buffer asks for them, and never waits for a drain: its
 * output may hang.
 */
#ifndef MU_CORRECTIONS_H
#define MU_CORRECTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct mu_recorder;
struct mu_thread_buffer;

/* Takes the innermost open stage back, as if it had not begun. Where a drain has written its START
 * row, or drains just now, or where stages are out of order, the stage is ended instead, and false
 * is returned. Never blocks. */
bool mu_thread_buffer_take_back(struct mu_thread_buffer *buffer);

/* Gives another step to the records from position `from` on up to `to`, both values that
 * mu_thread_buffer.head had. Returns how many slots of the range a drain had written already; their
 * records keep the step that they had. Where a drain runs, the next one makes the change first, of
 * what is not written then, and 0 is returned. */
uint64_t mu_thread_buffer_change_step(struct mu_thread_buffer *buffer, uint64_t from, uint64_t to,
                                      int64_t step);

/* Makes the changes that were left to this drain. */
void mu_corrections_make_lock_held(struct mu_recorder *recorder);

#endif

/* Serves requests for the stacks of this process: a dump on the thread that read the request, a
 * profile on a separate thread, one at a time. No thread needs the GIL, so a training that hangs is
 * served as well.
 *
 * The response is a file, captures/<id>__<label>.stacks.json below the log directory, which appears
 * whole: the stacks, or why there are none.
 */
#ifndef MU_STACK_SERVICE_H
#define MU_STACK_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

struct mu_recorder;
struct mu_stack_reader;

/* From now on requests in the control file are served with a copy of the reader, whether it is
 * ready or not. Later calls change nothing. Without memory there is no service. */
void mu_stack_service_start(struct mu_recorder *recorder, const struct mu_stack_reader *reader);

/* In a forked child: serves with what the parent had, and forgets its profile. */
void mu_stack_service_start_in_child(struct mu_recorder *recorder);

/* From now on the process is this rank and answers in this directory, "" for none. The caller may
 * hold any lock of the recorder. */
void mu_stack_service_move(struct mu_recorder *recorder, const char *log_dir, const char *label,
                           int rank);

/* What the process adds to its clock from now on. */
void mu_stack_service_set_offset(struct mu_recorder *recorder, int64_t offset_ns);

/* Ends a profile early, and waits for its file at most two seconds. Returns whether none runs. */
bool mu_stack_service_finish(struct mu_recorder *recorder);

/* Frees the service; nothing where a profile goes on. */
void mu_stack_service_destroy(struct mu_recorder *recorder);

#endif

/* Windows of steps of all thread buffers: what the drain passes to them, and their files. Whoever
 * calls holds recorder->drain_lock. */
#ifndef MU_DRAIN_WINDOWS_H
#define MU_DRAIN_WINDOWS_H

#include <stdint.h>

struct mu_recorder;
struct mu_drain_windows;
struct mu_strings;

void mu_drain_windows_free(struct mu_drain_windows *windows);

/* Begins files beside the CSV in use, as far as the configuration wants them. */
void mu_drain_windows_begin(struct mu_recorder *recorder, uint32_t attempt);

/* Writes what is open, and closes the files. */
void mu_drain_windows_end(struct mu_recorder *recorder);

/* Sets which windows the view's rows go to. */
void mu_drain_windows_choose(struct mu_recorder *recorder, const struct mu_strings *strings,
                             uint32_t index);

/* The thread buffer of that chunk has ended. */
void mu_drain_windows_end_track(struct mu_recorder *recorder, uint32_t index);

#endif

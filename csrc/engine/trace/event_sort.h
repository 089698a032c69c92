/* Puts JSON trace events, as trace_json.c and trace_seed.c write them, in the order of their times.
 */
#ifndef MU_EVENT_SORT_H
#define MU_EVENT_SORT_H

#include "trace/sink.h"

/* `events` are objects, one a line, joined by ",\n". What has no time comes first; of equal times
 * the longer event comes first, then the one that was first. */
MU_MUST_CHECK int mu_event_sort(const char *events, size_t length, struct mu_sink *out,
                                struct mu_error *err);

#endif

#include "stages/drain_windows.h"

#include <string.h>

#include "journal/step_windows.h"
#include "profile_files/window_files.h"
#include "stages/drain_state.h"
#include "stages/state.h"

enum { TRACKS_MAX = 16 }; /* at once; further thread buffers are in no window */

/* Of the timer whose rows are calls, of which a step has any number (run_files/state.py). */
static const char calls_tag[] = "collectives";

void mu_drain_windows_free(struct mu_drain_windows *windows) {
    for (int i = 0; i < MU_CHUNKS_MAX; i++) {
        mu_step_windows_free(windows->tracks[i]);
    }
    memset(windows, 0, sizeof(*windows));
}

void mu_drain_windows_begin(struct mu_recorder *recorder, uint32_t attempt) {
    mu_drain_windows_free(&recorder->drain->windows);
    recorder->windows_attempt = attempt;
    mu_window_files_begin(&recorder->window_files, &recorder->output,
                          recorder->output.stem + strlen("profile_"),
                          recorder->config.windows_bytes);
}

/* Where rows of the CSV are lost, too, that says it. */
static void report_failures(struct mu_recorder *recorder) {
    if (atomic_load(&recorder->troubles.failed_writes) == 0) {
        atomic_store(&recorder->troubles.failed_windows, recorder->window_files.failed);
    }
}

void mu_drain_windows_end(struct mu_recorder *recorder) {
    for (uint32_t i = 0; i < MU_CHUNKS_MAX; i++) {
        mu_drain_windows_end_track(recorder, i);
    }
    mu_window_files_end(&recorder->window_files);
}

void mu_drain_windows_end_track(struct mu_recorder *recorder, uint32_t index) {
    struct mu_drain_windows *windows = &recorder->drain->windows;
    if (windows->tracks[index] == NULL) {
        return;
    }
    mu_step_windows_flush(windows->tracks[index]);
    report_failures(recorder);
    mu_step_windows_free(windows->tracks[index]);
    windows->tracks[index] = NULL;
    recorder->drain->views[index].windows = NULL;
    windows->live--;
}

static struct mu_step_windows *make_track(struct mu_recorder *recorder,
                                          const struct mu_strings *strings, uint32_t index) {
    struct mu_drain_windows *windows = &recorder->drain->windows;
    const struct mu_chunk_header *chunk = mu_journal_chunk(&recorder->journal, index);
    struct mu_window_track track = {
        .attempt = recorder->windows_attempt,
        .track = windows->made,
        .tid = atomic_load_explicit(&chunk->tid, memory_order_relaxed),
    };
    uint32_t tag = atomic_load_explicit(&chunk->tag, memory_order_acquire);
    track.tag = mu_strings_get(strings, tag, &track.tag_length);
    bool calls = track.tag != NULL && track.tag_length == sizeof(calls_tag) - 1 &&
                 memcmp(track.tag, calls_tag, track.tag_length) == 0;
    const struct mu_window_sink sink = mu_window_files_sink(&recorder->window_files);
    struct mu_step_windows *made = NULL;
    if (calls || windows->live == TRACKS_MAX ||
        mu_step_windows_create(&made, &track, &sink, NULL) != MU_OK) {
        return NULL;
    }
    windows->live++;
    windows->made++;
    return made;
}

void mu_drain_windows_choose(struct mu_recorder *recorder, const struct mu_strings *strings,
                             uint32_t index) {
    struct mu_drain *drain = recorder->drain;
    struct mu_buffer_view *view = &drain->views[index];
    struct mu_step_windows **track = &drain->windows.tracks[index];
    view->windows = NULL;
    if (recorder->window_files.directory[0] == '\0') {
        return;
    }
    if (*track == NULL && view->to != view->from) {
        *track = make_track(recorder, strings, index);
    }
    if (*track != NULL) {
        mu_step_windows_set_offset(*track, recorder->real_offset_ns + recorder->user_offset_ns -
                                               recorder->stepped_ns);
        report_failures(recorder);
    }
    view->windows = *track;
}

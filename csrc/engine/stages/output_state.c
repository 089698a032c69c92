#include "stages/output_state.h"

#include <string.h>

void mu_output_state_publish_lock_held(struct mu_recorder *recorder) {
    struct mu_output_state *state = &recorder->published;
    const struct mu_output *output = &recorder->output;
    bool file = output->fd >= 0;
    pthread_mutex_lock(&recorder->registry_lock);
    state->kind = output->kind;
    state->rank = recorder->config.rank;
    state->attempt = file ? recorder->opened.attempt : 0;
    state->csv_bytes = output->csv_bytes;
    state->part = output->part;
    memcpy(state->csv_path, output->csv_path, sizeof(state->csv_path));
    memcpy(state->journal_path, recorder->journal.path, sizeof(state->journal_path));
    memcpy(state->label, file ? recorder->opened.label : "", file ? sizeof(state->label) : 1);
    pthread_mutex_unlock(&recorder->registry_lock);
}

void mu_recorder_output_state(struct mu_recorder *recorder, struct mu_output_state *state) {
    pthread_mutex_lock(&recorder->registry_lock);
    *state = recorder->published;
    pthread_mutex_unlock(&recorder->registry_lock);
}

int mu_output_state_no_answer(struct mu_recorder *recorder, struct mu_error *err) {
    struct mu_output_state state;
    mu_recorder_output_state(recorder, &state);
    return mu_error_set(err, MU_ERR_STATE, "the output in use does not answer: %s", state.csv_path);
}

void mu_recorder_opened_path(struct mu_recorder *recorder, char path[MU_PATH_BYTES]) {
    pthread_mutex_lock(&recorder->registry_lock);
    memcpy(path, recorder->opened.csv_path, MU_PATH_BYTES);
    pthread_mutex_unlock(&recorder->registry_lock);
}

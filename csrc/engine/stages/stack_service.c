#include "stages/stack_service.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host_name.h"
#include "base/own_files.h"
#include "base/thread.h"
#include "process_stacks/stack_record.h"
#include "process_stacks/stack_request.h"
#include "stages/state.h"

enum {
    SEEN_MAX = 32,
    THREAD_STACK_BYTES = 512 * 1024,
    PATH_BYTES = 2048,
};

static const int64_t finish_wait_ns = 2000000000;
static const int64_t second_ns = 1000000000;

/* What the file says of the process, and where the file goes. */
struct place {
    char log_dir[1024], label[MU_LABEL_BYTES], host[256];
    int rank;
    int64_t time_offset_ns;
};

struct mu_stack_service {
    struct mu_stack_reader reader;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t ended;
    bool profiles, stop;
    struct mu_stack_request request;        /* of the profile that runs */
    struct place place;                     /* of that profile */
    struct place now;                       /* of the process */
    char seen[SEEN_MAX][MU_STACK_ID_BYTES]; /* the newest ids */
    unsigned seen_count;
};

/* --- the file -------------------------------------------------------------------------------- */

/* A response without stacks. */
static void write_refusal(const struct place *place, const struct mu_stack_request *request,
                          const char *reason, FILE *out) {
    fprintf(out,
            "{\"my_utils\":\"stacks\",\"version\":1,\"id\":\"%s\",\"rank\":%d,\"label\":\"%s\","
            "\"refused\":\"%s\"}\n",
            request->id, place->rank, place->label, reason);
}

static void write_record(const struct place *place, const struct mu_stack_request *request,
                         const struct mu_stack_record *record, FILE *out) {
    const struct mu_stack_origin origin = {
        .id = request->id,
        .kind = request->milliseconds == 0 ? "dump" : "profile",
        .label = place->label,
        .host = place->host,
        .rank = place->rank,
        .time_offset_ns = place->time_offset_ns,
        .interval_ns = request->milliseconds == 0 ? 0 : second_ns / request->hz,
    };
    mu_stack_record_write(record, &origin, out);
}

/* Writes the stacks, or the reason where `record` is NULL. What cannot be written is not there: the
 * process that asked then times out, and says so. */
static void respond(const struct place *place, const struct mu_stack_request *request,
                    const struct mu_stack_record *record, const char *reason) {
    char folder[PATH_BYTES], path[PATH_BYTES + 256], temporary[PATH_BYTES + 260];
    snprintf(folder, sizeof(folder), "%s/captures", place->log_dir);
    snprintf(path, sizeof(path), "%s/%s__%s.stacks.json", folder, request->id, place->label);
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return;
    }
    int fd = mu_open_instead(temporary, 0666);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (out == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    if (record != NULL) {
        write_record(place, request, record, out);
    } else {
        write_refusal(place, request, reason, out);
    }
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    if (failed || rename(temporary, path) != 0) {
        unlink(temporary);
    }
}

/* --- a dump, a profile ----------------------------------------------------------------------- */

static void dump(struct mu_stack_service *service, const struct place *place,
                 const struct mu_stack_request *request) {
    struct mu_stack_record record;
    if (mu_stack_record_init(&record, &service->reader, NULL) != MU_OK) {
        respond(place, request, NULL, "there was no memory");
        return;
    }
    mu_stack_record_round(&record, place->time_offset_ns);
    respond(place, request, &record, "");
    mu_stack_record_reset(&record);
}

/* Rounds that come too late are left out: the next one is at its own time. */
static void take_profile(struct mu_stack_service *service, struct mu_stack_record *record) {
    int64_t interval_ns = second_ns / service->request.hz;
    int64_t next_ns = mu_clock_monotonic_ns();
    int64_t end_ns = next_ns + (int64_t)service->request.milliseconds * 1000000;
    while (next_ns < end_ns &&
           mu_wait_until(&service->lock, &service->ended, &service->stop, next_ns)) {
        mu_stack_record_round(record, service->place.time_offset_ns);
        int64_t late_ns = mu_clock_monotonic_ns() - next_ns;
        next_ns += (late_ns / interval_ns + 1) * interval_ns;
    }
}

static void *profile_main(void *argument) {
    struct mu_stack_service *service = argument;
    struct mu_stack_record record;
    if (mu_stack_record_init(&record, &service->reader, NULL) == MU_OK) {
        take_profile(service, &record);
        respond(&service->place, &service->request, &record, "");
        mu_stack_record_reset(&record);
    } else {
        respond(&service->place, &service->request, NULL, "there was no memory");
    }
    pthread_mutex_lock(&service->lock);
    service->profiles = service->stop = false;
    pthread_cond_broadcast(&service->ended);
    pthread_mutex_unlock(&service->lock);
    return NULL;
}

static void profile(struct mu_stack_service *service, const struct place *place,
                    const struct mu_stack_request *request) {
    pthread_mutex_lock(&service->lock);
    bool is_free = !service->profiles && !service->stop;
    if (is_free) {
        service->profiles = true;
        service->request = *request;
        service->place = *place;
    }
    pthread_mutex_unlock(&service->lock);
    if (!is_free) {
        respond(place, request, NULL, "another profile of its stacks is being taken");
    } else if (!mu_thread_start(NULL, THREAD_STACK_BYTES, profile_main, service)) {
        pthread_mutex_lock(&service->lock);
        service->profiles = false;
        pthread_mutex_unlock(&service->lock);
        respond(place, request, NULL, "no thread could be started");
    }
}

/* --- requests -------------------------------------------------------------------------------- */

static bool is_seen_lock_held(struct mu_stack_service *service, const char *id) {
    for (unsigned i = 0; i < SEEN_MAX && i < service->seen_count; i++) {
        if (strcmp(service->seen[i], id) == 0) {
            return true;
        }
    }
    snprintf(service->seen[service->seen_count++ % SEEN_MAX], MU_STACK_ID_BYTES, "%s", id);
    return false;
}

struct reading {
    struct mu_stack_service *service; /* borrowed */
    struct place place;
    bool at_start; /* the requests are older than the process */
};

static void serve(void *context, const struct mu_stack_request *request) {
    struct reading *reading = context;
    struct mu_stack_service *service = reading->service;
    pthread_mutex_lock(&service->lock);
    bool is_seen = is_seen_lock_held(service, request->id);
    pthread_mutex_unlock(&service->lock);
    if (is_seen || reading->at_start || reading->place.log_dir[0] == '\0') {
        return;
    }
    if (!service->reader.ready) {
        respond(&reading->place, request, NULL, service->reader.off);
    } else if (request->milliseconds == 0) {
        dump(service, &reading->place, request);
    } else {
        profile(service, &reading->place, request);
    }
}

/* A text that asks for stacks alone is done with: the training would load what reads the others. */
static bool hear(void *context, const struct mu_control_text *text) {
    struct mu_stack_service *service = context;
    struct reading reading = {.service = service, .at_start = text->at_start};
    if (text->bytes == NULL) {
        return false;
    }
    pthread_mutex_lock(&service->lock);
    reading.place = service->now;
    pthread_mutex_unlock(&service->lock);
    int rank = text->at_start ? MU_STACK_ANY_RANK : reading.place.rank;
    mu_stack_requests(text->bytes, text->length, rank, serve, &reading);
    return mu_stack_requests_alone(text->bytes, text->length);
}

/* --- the service ----------------------------------------------------------------------------- */

static struct mu_stack_service *new_service(const struct mu_stack_reader *reader) {
    struct mu_stack_service *service = calloc(1, sizeof(*service));
    if (service == NULL) {
        return NULL;
    }
    service->reader = *reader;
    mu_host_name(service->now.host, sizeof(service->now.host));
    pthread_mutex_init(&service->lock, NULL);
    mu_cond_init(&service->ended);
    return service;
}

void mu_stack_service_start(struct mu_recorder *recorder, const struct mu_stack_reader *reader) {
    char log_dir[sizeof(recorder->config.log_dir)] = "", label[MU_LABEL_BYTES];
    pthread_mutex_lock(&recorder->registry_lock);
    if (recorder->stacks == NULL && reader != NULL) {
        recorder->stacks = new_service(reader);
    }
    if (recorder->published.kind == MU_OUTPUT_FILE && recorder->opened.worker == 0) {
        memcpy(log_dir, recorder->config.log_dir, sizeof(log_dir));
    }
    memcpy(label, recorder->opened.label, sizeof(label));
    int rank = recorder->config.rank;
    pthread_mutex_unlock(&recorder->registry_lock);
    if (recorder->stacks != NULL) {
        mu_control_set_listener(&recorder->control, hear, recorder->stacks);
        mu_stack_service_set_offset(recorder, recorder->user_offset_ns);
        mu_stack_service_move(recorder, log_dir, label, rank);
    }
}

void mu_stack_service_move(struct mu_recorder *recorder, const char *log_dir, const char *label,
                           int rank) {
    struct mu_stack_service *service = recorder->stacks;
    if (service == NULL) {
        return;
    }
    pthread_mutex_lock(&service->lock);
    snprintf(service->now.log_dir, sizeof(service->now.log_dir), "%s", log_dir);
    snprintf(service->now.label, sizeof(service->now.label), "%s", label);
    service->now.rank = rank;
    pthread_mutex_unlock(&service->lock);
}

void mu_stack_service_set_offset(struct mu_recorder *recorder, int64_t offset_ns) {
    struct mu_stack_service *service = recorder->stacks;
    if (service != NULL) {
        pthread_mutex_lock(&service->lock);
        service->now.time_offset_ns = offset_ns;
        pthread_mutex_unlock(&service->lock);
    }
}

/* The parent's is abandoned: its lock may be held by a thread that does not exist here. */
void mu_stack_service_start_in_child(struct mu_recorder *recorder) {
    struct mu_stack_service *of_parent = recorder->stacks;
    recorder->stacks = NULL;
    if (of_parent != NULL) {
        mu_stack_service_start(recorder, &of_parent->reader);
    }
}

bool mu_stack_service_finish(struct mu_recorder *recorder) {
    struct mu_stack_service *service = recorder->stacks;
    int64_t wait_ns = finish_wait_ns;
    if (service == NULL) {
        return true;
    }
    pthread_mutex_lock(&service->lock);
    service->stop = true;
    pthread_cond_broadcast(&service->ended);
    while (service->profiles && wait_ns > 0) {
        struct timespec until = mu_clock_after(CLOCK_MONOTONIC, MU_WAIT_ONCE_NS);
        if (pthread_cond_timedwait(&service->ended, &service->lock, &until) != 0) {
            wait_ns -= MU_WAIT_ONCE_NS;
        }
    }
    bool none = !service->profiles;
    service->stop = !none;
    pthread_mutex_unlock(&service->lock);
    return none;
}

void mu_stack_service_destroy(struct mu_recorder *recorder) {
    if (recorder->stacks != NULL && mu_stack_service_finish(recorder)) {
        pthread_mutex_destroy(&recorder->stacks->lock);
        pthread_cond_destroy(&recorder->stacks->ended);
        free(recorder->stacks);
    }
    recorder->stacks = NULL;
}

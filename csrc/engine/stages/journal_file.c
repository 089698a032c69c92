#include "stages/journal_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/own_files.h"
#include "base/process.h"
#include "profile_files/placement.h"
#include "stages/recording.h"

enum { POINTER_BYTES = MU_PATH_BYTES + 8 };

MU_MUST_CHECK static int attach_alone(struct mu_recorder *recorder, const char *path,
                                      struct mu_error *err) {
    struct mu_alone alone = {mu_recording_begin_alone, mu_recording_end_alone, recorder};
    recorder->journal.alone = &alone;
    int code = mu_journal_attach(&recorder->journal, path, err);
    recorder->journal.alone = NULL;
    return code;
}

MU_MUST_CHECK static int detach_alone(struct mu_recorder *recorder, struct mu_error *err) {
    struct mu_alone alone = {mu_recording_begin_alone, mu_recording_end_alone, recorder};
    recorder->journal.alone = &alone;
    int code = mu_journal_detach(&recorder->journal, err);
    recorder->journal.alone = NULL;
    return code;
}

static void set_text(char *field, size_t size, const char *text) {
    size_t length = strnlen(text, size - 1);
    memcpy(field, text, length);
    memset(field + length, 0, size - length);
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

const char *mu_journal_file_host(const struct mu_output_config *config) {
    return config->host[0] != '\0' ? config->host : config->machine;
}

void mu_journal_file_identify(const struct mu_next_files *next, struct mu_journal_header *header) {
    const struct mu_output_config *config = next->config;
    header->pid = (int32_t)getpid();
    atomic_store(&header->closed, 0);
    header->rank = config->rank;
    header->world_size = config->world_size;
    header->attempt = next->report->attempt;
    header->process_start = mu_process_start((int32_t)getpid());
    mu_boot_id(header->boot_id);
    set_text(header->host, sizeof(header->host), mu_journal_file_host(config));
    set_text(header->machine, sizeof(header->machine), config->machine);
    set_text(header->label, sizeof(header->label), next->report->label);
    set_text(header->log_dir, sizeof(header->log_dir), config->log_dir);
    set_text(header->csv_name, sizeof(header->csv_name), file_name(next->output->csv_path));
}

/* Of the journal in its new file: what was drained is not in the new CSV, and does not come. */
static void describe_next(void *owner, struct mu_journal_header *header) {
    const struct mu_next_files *next = owner;
    struct mu_commit *commit = &header->commits[next->recorder->epoch & 1];
    mu_journal_file_identify(next, header);
    commit->csv_bytes = next->output->csv_bytes;
    commit->csv_part = next->output->part;
}

MU_MUST_CHECK static int journal_directory(const struct mu_output_config *config, bool local,
                                           char *path, size_t size, struct mu_error *err) {
    if (config->journal_dir[0] != '\0') {
        snprintf(path, size, "%s", config->journal_dir);
        return MU_OK;
    }
    if (local) {
        snprintf(path, size, "%s", config->log_dir);
        return MU_OK;
    }
    return mu_placement_local_directory(path, size, err);
}

MU_MUST_CHECK static int write_pointer(const char *pointer, const char *journal,
                                       struct mu_error *err) {
    int fd = mu_open_instead(pointer, 0644);
    if (fd < 0) {
        return mu_error_sys(err, "create", pointer);
    }
    char place[MU_PLACE_BYTES], lines[MU_PATH_BYTES + MU_PLACE_BYTES + 2];
    mu_placement_of(journal, place);
    int length = snprintf(lines, sizeof(lines), "%s\n%s\n", journal, place);
    bool written = write(fd, lines, (size_t)length) == length;
    close(fd);
    return written ? MU_OK : mu_error_sys(err, "write", pointer);
}

/* A pointer file is in the log directory and is named as the journal. */
static void pointer_path(const char *log_dir, const char *journal, char path[POINTER_BYTES]) {
    snprintf(path, POINTER_BYTES, "%s%s-ref", log_dir, strrchr(journal, '/'));
}

/* Where a journal is and what leads there. */
struct journal_place {
    char path[MU_PATH_BYTES];
    char pointer[POINTER_BYTES]; /* empty for a journal in the log directory */
};

/* The name is not that of the journal in use: while it moves, both files are there, and both may be
 * in one directory. */
MU_MUST_CHECK static int choose_journal_place(const struct mu_next_files *next,
                                              struct journal_place *place, struct mu_error *err) {
    const struct mu_journal *journal = &next->recorder->journal;
    const struct mu_journal_header *header = mu_journal_header(journal);
    char directory[1024], name[MU_PATH_BYTES];
    bool local = mu_placement_is_local(next->config->log_dir);
    place->pointer[0] = '\0';
    int code = journal_directory(next->config, local, directory, sizeof(directory), err);
    if (code != MU_OK) {
        return code;
    }
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s.%d.%llu%s.journal", next->report->label, header->pid,
                 (unsigned long long)header->process_start, i == 0 ? "" : ".1");
        if (strcmp(name, file_name(journal->path)) != 0) {
            break;
        }
    }
    if (snprintf(place->path, sizeof(place->path), "%s/%s", directory, name) >=
        (int)sizeof(place->path)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "journal path too long: %s", directory);
    }
    if (strcmp(directory, next->config->log_dir) != 0) {
        pointer_path(next->config->log_dir, place->path, place->pointer);
    }
    return MU_OK;
}

/* The pointer comes first: a kill may leave one that leads nowhere, but no journal to which nothing
 * leads. */
void mu_journal_file_attach(const struct mu_next_files *now, struct mu_open_report *report) {
    struct mu_recorder *recorder = now->recorder;
    struct journal_place place;
    if (recorder->journal.fd >= 0) { /* it has moved */
        set_text(report->journal_path, sizeof(report->journal_path), recorder->journal.path);
        return;
    }
    if (choose_journal_place(now, &place, &report->journal_error) != MU_OK) {
        return;
    }
    if (place.pointer[0] != '\0') {
        mu_error_kept(write_pointer(place.pointer, place.path, &report->journal_error));
    }
    if (attach_alone(recorder, place.path, &report->journal_error) == MU_OK) {
        set_text(report->journal_path, sizeof(report->journal_path), place.path);
    } else if (place.pointer[0] != '\0') {
        unlink(place.pointer);
    }
}

/* Whether a pointer file gives the place of the journal. */
static bool journal_is_elsewhere(const struct mu_recorder *recorder) {
    const char *path = recorder->opened.journal_path;
    size_t length = strlen(recorder->config.log_dir);
    return path[0] != '\0' && (strncmp(path, recorder->config.log_dir, length) != 0 ||
                               strrchr(path, '/') != path + length);
}

/* The pointer to the journal in use; empty for none. */
static void current_pointer(const struct mu_recorder *recorder, char path[POINTER_BYTES]) {
    path[0] = '\0';
    if (journal_is_elsewhere(recorder)) {
        pointer_path(recorder->config.log_dir, recorder->opened.journal_path, path);
    }
}

int mu_journal_file_leave(struct mu_recorder *recorder, struct mu_error *err) {
    char pointer[POINTER_BYTES];
    current_pointer(recorder, pointer);
    atomic_store(&mu_journal_header(&recorder->journal)->closed, 1);
    int code = detach_alone(recorder, err);
    if (code == MU_OK && pointer[0] != '\0') {
        unlink(pointer);
    }
    return code;
}

bool mu_journal_file_move(const struct mu_next_files *next) {
    struct mu_recorder *recorder = next->recorder;
    const struct mu_alone alone = {mu_recording_begin_alone, mu_recording_end_alone, recorder};
    const struct mu_journal_change change = {describe_next, (void *)next};
    struct journal_place place;
    char left[POINTER_BYTES];
    if (recorder->journal.fd < 0 || choose_journal_place(next, &place, NULL) != MU_OK ||
        (place.pointer[0] != '\0' && write_pointer(place.pointer, place.path, NULL) != MU_OK)) {
        return false;
    }
    current_pointer(recorder, left);
    recorder->journal.alone = &alone;
    int code = mu_journal_move(&recorder->journal, place.path, &change, NULL);
    recorder->journal.alone = NULL;
    const char *useless = code == MU_OK ? left : place.pointer;
    if (useless[0] != '\0') {
        unlink(useless);
    }
    return code == MU_OK;
}

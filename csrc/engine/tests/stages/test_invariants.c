/* What the recorder, its journal and its rings rely on is checked: a child breaks one such
 * condition at a time, goes on recording, and ends with that condition on stderr. Without the harm
 * the same work ends well; in builds that do not check only that is tested. */
#include "stages/drain.h"
#include "stages/drain_state.h"
#include "tests/child.h"
#include "tests/stages/recorder_fixture.h"

struct scene {
    struct mu_recorder *recorder;
    struct mu_timer timer;
    struct mu_thread_buffer *buffer;
};

/* A recorder without files that has drained some stages; one is open. */
static void scene_start(struct scene *scene) {
    mu_error_kept(mu_recorder_create(&scene->recorder, NULL));
    mu_error_kept(mu_timer_init(&scene->timer, scene->recorder, "", NULL));
    stage_start(&scene->timer, "outer");
    stage_start(&scene->timer, "inner");
    stage_stop(&scene->timer, "inner");
    mu_recorder_drain(scene->recorder, drain_wait_ns);
    scene->buffer = mu_timer_thread_buffer(&scene->timer);
}

static struct mu_journal_header *header_of(struct scene *scene) {
    return mu_journal_header(&scene->recorder->journal);
}

static struct mu_buffer_view *view_of(struct scene *scene) {
    return &scene->recorder->drain->views[scene->buffer->chunk_index];
}

/* --- what goes on after the harm ----------------------------------------------------------- */

static void record(struct scene *scene) {
    stage_start(&scene->timer, "inner");
    stage_stop(&scene->timer, "inner");
}

static void record_new_name(struct scene *scene) {
    stage_start(&scene->timer, "new");
    stage_stop(&scene->timer, "new");
}

static void drain(struct scene *scene) {
    record(scene);
    mu_recorder_drain(scene->recorder, drain_wait_ns);
}

static void record_with_another_timer(struct scene *scene) {
    struct mu_timer timer;
    mu_error_kept(mu_timer_init(&timer, scene->recorder, "", NULL));
    stage_start(&timer, "inner");
    stage_stop(&timer, "inner");
    mu_timer_release(&timer);
}

static void end_timer(struct scene *scene) {
    mu_timer_release(&scene->timer);
}

/* --- harm: thread buffer ------------------------------------------------------------------- */

static void give_chunk_away(struct scene *scene) {
    atomic_store(&scene->buffer->chunk->state, MU_CHUNK_FREE);
}

static void move_head(struct scene *scene) {
    atomic_fetch_add(&scene->buffer->chunk->head, 1);
}

static void move_tail_beyond_head(struct scene *scene) {
    atomic_store(&scene->buffer->chunk->tail, scene->buffer->head + 1);
}

static void promise_more_room_than_the_ring_has(struct scene *scene) {
    scene->buffer->free_until = atomic_load(&scene->buffer->chunk->tail) + MU_RING_SLOTS + 1;
}

static void forget_an_open_stage(struct scene *scene) {
    atomic_fetch_sub(&scene->buffer->chunk->depth, 1);
}

static void go_back_to_the_first_node(struct scene *scene) {
    scene->buffer->node_next = 1;
}

static void leave_the_list(struct scene *scene) {
    scene->recorder->buffers = NULL;
}

static void fill_the_next_chunk(struct scene *scene) {
    uint32_t next = atomic_load(&header_of(scene)->chunk_count);
    atomic_store(&mu_journal_chunk(&scene->recorder->journal, next)->head, 5);
}

/* --- harm: drain --------------------------------------------------------------------------- */

static void go_back_to_slots_that_are_free(struct scene *scene) {
    view_of(scene)->from = 0;
}

static void drain_what_was_not_recorded(struct scene *scene) {
    view_of(scene)->from = scene->buffer->head + 100;
}

static void hold_a_row_that_is_free(struct scene *scene) {
    view_of(scene)->held_count = 1;
    view_of(scene)->held[0].position = 0;
}

static void skip_an_epoch(struct scene *scene) {
    scene->recorder->epoch++;
}

/* --- harm: journal ------------------------------------------------------------------------- */

static void damage_magic(struct scene *scene) {
    header_of(scene)->magic[0] ^= 1;
}

static void move_chunks(struct scene *scene) {
    header_of(scene)->chunks_offset += 4096;
}

static void count_too_many_chunks(struct scene *scene) {
    atomic_store(&header_of(scene)->chunk_count, MU_CHUNKS_MAX + 1);
}

static void lose_a_string(struct scene *scene) {
    atomic_fetch_sub(&header_of(scene)->string_count, 1);
}

static void use_bytes_without_room(struct scene *scene) {
    scene->recorder->journal.blob_backed = 1;
}

static void lose_paths(struct scene *scene) {
    scene->recorder->names->path_count = 1;
}

/* ------------------------------------------------------------------------------------------- */

struct rule {
    const char *condition; /* as in the source */
    void (*harm)(struct scene *scene);
    void (*work)(struct scene *scene);
};

static const struct rule rules[] = {
    {"atomic_load(&chunk->state) == MU_CHUNK_OWNED", give_chunk_away, record},
    {"atomic_load(&chunk->head) == buffer->head", move_head, record},
    {"atomic_load(&chunk->tail) <= buffer->head", move_tail_beyond_head, record},
    {"buffer->free_until - atomic_load(&chunk->tail) <= MU_RING_SLOTS",
     promise_more_room_than_the_ring_has, record},
    {"atomic_load(&chunk->depth) == buffer->depth", forget_an_open_stage, record},
    {"frame->node > (depth == 0 ? 0 : frame[-1].node)", go_back_to_the_first_node, record},
    {"*at == buffer", leave_the_list, end_timer},
    {"atomic_load(&buffer->chunk->state) == MU_CHUNK_OWNED", give_chunk_away, end_timer},
    {"atomic_load(&buffer->chunk->tail) == buffer->head", fill_the_next_chunk,
     record_with_another_timer},
    {"atomic_load(&chunk->tail) <= view->from", go_back_to_slots_that_are_free, drain},
    {"view->from <= atomic_load(&chunk->head)", drain_what_was_not_recorded, drain},
    {"view->held[i].position >= atomic_load(&chunk->tail)", hold_a_row_that_is_free, drain},
    {"last_epoch(mu_journal_header(&recorder->journal)) == recorder->epoch", skip_an_epoch, drain},
    {"memcmp(header->magic, MU_JOURNAL_MAGIC, sizeof(header->magic)) == 0", damage_magic,
     record_new_name},
    {"header->chunks_offset == MU_CHUNKS_OFFSET", move_chunks, record_new_name},
    {"chunk_count(journal) <= MU_CHUNKS_MAX", count_too_many_chunks, record_new_name},
    {"strings_end(journal) == journal->blob_used", lose_a_string, record_new_name},
    {"journal->blob_used <= journal->blob_backed", use_bytes_without_room, record_new_name},
    {"parent < names->path_count && names->path_count <= MU_PATHS_MAX", lose_paths,
     record_new_name},
};

enum { RULES = sizeof(rules) / sizeof(rules[0]) };

static void work_unharmed(const void *context) {
    const struct rule *rule = context;
    struct scene scene;
    scene_start(&scene);
    rule->work(&scene);
}

static void test_work_goes_on_unharmed(void) {
    for (int i = 0; i < RULES; i++) {
        struct child_end end = child_run(work_unharmed, &rules[i]);
        CHECK_INT(end.status, 0);
        CHECK_STR(end.text, "");
    }
}

#ifdef MU_INVARIANTS

static void work_harmed(const void *context) {
    const struct rule *rule = context;
    struct scene scene;
    scene_start(&scene);
    rule->harm(&scene);
    rule->work(&scene);
}

static void test_harm_ends_the_process(void) {
    for (int i = 0; i < RULES; i++) {
        struct child_end end = child_run(work_harmed, &rules[i]);
        char wanted[256];
        snprintf(wanted, sizeof(wanted), "broken invariant: %s\n", rules[i].condition);
        if (!CHECK(child_aborted(&end)) || !CHECK(strstr(end.text, wanted) != NULL)) {
            fprintf(stderr, "not \"%s\" but: %s\n", rules[i].condition, end.text);
        }
    }
}

#else

static void test_harm_ends_the_process(void) {
    printf("(built without invariants) ");
}

#endif

int main(void) {
    test_work_goes_on_unharmed();
    test_harm_ends_the_process();
    return check_report();
}

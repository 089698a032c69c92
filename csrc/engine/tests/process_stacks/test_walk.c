/* The walk over an image of an interpreter that this test makes: what is read, and that whatever
 * stands there, no address is trusted. */
#include "process_stacks/stack_record.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/check.h"

/* Objects in an order of their own: the layout alone says where things are. */
struct object {
    uint64_t pad, type;
};

struct text {
    struct object head;
    uint64_t length;
    uint32_t pad, state;
    char ascii[64];
};

struct bytes {
    struct object head;
    uint64_t length;
    unsigned char data[32];
};

struct code {
    uint64_t pad, type;
    struct text *qualname, *filename;
    int32_t first_line, more;
    struct bytes *line_table;
    unsigned char bytecode[64];
};

struct frame {
    struct frame *previous;
    char owner, pad[7];
    void *code;
    unsigned char *instruction;
    uint64_t locals[2];
};

struct chunk {
    uint64_t pad, size;
    struct frame frames[300];
};

struct cframe {
    uint64_t pad;
    struct frame *_Atomic frame;
};

struct thread {
    struct thread *previous, *next;
    void *interpreter;
    uint64_t tid;
    struct cframe *cframe;
    struct chunk *chunk;
};

struct interpreter {
    uint64_t pad;
    struct interpreter *next;
    struct thread *threads;
};

enum { ASCII_STATE = 1 << 2 | 1 << 5 | 1 << 6, OWNER_C = 3 };

struct image {
    struct interpreter *first, interpreter;
    struct thread threads[3];
    struct cframe cframes[3];
    struct chunk *chunks; /* owned, 3 */
    struct object code_type, text_type, bytes_type;
    struct text name, file;
    struct bytes table;
    struct code code;
    struct mu_stack_reader reader;
};

static uint64_t address_of(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

static void set_text(struct image *image, struct text *text, const char *ascii) {
    text->head.type = address_of(&image->text_type);
    text->length = strlen(ascii);
    text->state = ASCII_STATE;
    strcpy(text->ascii, ascii);
}

static void fill_layout(struct image *image) {
    struct mu_python_layout *layout = &image->reader.layout;
    layout->interpreters = address_of(&image->first);
    layout->code_type = address_of(&image->code_type);
    layout->text_type = address_of(&image->text_type);
    layout->bytes_type = address_of(&image->bytes_type);
    layout->object_type = offsetof(struct object, type);
    layout->interpreter.next = offsetof(struct interpreter, next);
    layout->interpreter.threads = offsetof(struct interpreter, threads);
    layout->thread.next = offsetof(struct thread, next);
    layout->thread.previous = offsetof(struct thread, previous);
    layout->thread.interpreter = offsetof(struct thread, interpreter);
    layout->thread.native_id = offsetof(struct thread, tid);
    layout->thread.chunk = offsetof(struct thread, chunk);
    layout->thread.frame = offsetof(struct thread, cframe);
    layout->thread.has_cframe = true;
    layout->thread.frame_in_cframe = offsetof(struct cframe, frame);
    layout->frame.previous = offsetof(struct frame, previous);
    layout->frame.code = offsetof(struct frame, code);
    layout->frame.owner = offsetof(struct frame, owner);
    layout->frame.instruction = offsetof(struct frame, instruction);
    layout->frame.owner_no_function = OWNER_C;
    layout->chunk.size = offsetof(struct chunk, size);
    layout->code.qualname = offsetof(struct code, qualname);
    layout->code.filename = offsetof(struct code, filename);
    layout->code.first_line = offsetof(struct code, first_line);
    layout->code.line_table = offsetof(struct code, line_table);
    layout->code.bytecode = offsetof(struct code, bytecode);
    layout->text.length = offsetof(struct text, length);
    layout->text.state = offsetof(struct text, state);
    layout->text.ascii_data = layout->text.other_data = offsetof(struct text, ascii);
    layout->bytes.length = offsetof(struct bytes, length);
    layout->bytes.data = offsetof(struct bytes, data);
}

/* Lines 10, 12 and 9: two code units on the first, one on each other. Kinds as CPython has them. */
static const unsigned char lines[] = {
    0x80 | 0 << 3 | 1,  0x11,                   /* short: no step, two units */
    0x80 | 12 << 3 | 0, 0x01,       0x02,       /* one line: +2, columns 1 to 2 */
    0x80 | 14 << 3 | 0, 3 << 1 | 1, 0,    1, 1, /* long: -3 */
    0x80 | 15 << 3 | 0,                         /* no location */
};

static void link_threads(struct image *image) {
    for (int i = 0; i < 3; i++) {
        struct thread *thread = &image->threads[i];
        thread->previous = i == 0 ? NULL : thread - 1;
        thread->next = i == 2 ? NULL : thread + 1;
        thread->interpreter = &image->interpreter;
        thread->tid = 100 + (uint64_t)i;
        thread->cframe = &image->cframes[i];
        thread->chunk = &image->chunks[i];
        image->chunks[i].size = sizeof(struct chunk);
        image->cframes[i].frame = NULL;
    }
    image->interpreter.threads = &image->threads[0];
    image->first = &image->interpreter;
}

static struct image *new_image(void) {
    struct image *image = calloc(1, sizeof(*image));
    image->chunks = calloc(3, sizeof(struct chunk));
    fill_layout(image);
    link_threads(image);
    set_text(image, &image->name, "Model.forward");
    set_text(image, &image->file, "/src/model.py");
    image->table.head.type = address_of(&image->bytes_type);
    image->table.length = sizeof(lines);
    memcpy(image->table.data, lines, sizeof(lines));
    image->code.type = address_of(&image->code_type);
    image->code.qualname = &image->name;
    image->code.filename = &image->file;
    image->code.first_line = 10;
    image->code.line_table = &image->table;
    return image;
}

static void free_image(struct image *image) {
    free(image->chunks);
    free(image);
}

/* Puts `depth` frames onto a thread's chunk; the innermost is at instruction `at`. */
static struct frame *push_frames(struct image *image, int thread, int depth, int at) {
    struct frame *previous = NULL;
    for (int i = 0; i < depth; i++) {
        struct frame *frame = &image->chunks[thread].frames[i];
        *frame = (struct frame){.previous = previous, .code = &image->code};
        frame->instruction = image->code.bytecode + at;
        previous = frame;
    }
    image->cframes[thread].frame = previous;
    return previous;
}

static void read_once(struct image *image, struct mu_stack_record *record) {
    CHECK_INT(mu_stack_record_init(record, &image->reader, NULL), MU_OK);
    mu_stack_record_round(record, 0);
}

/* Line of the frame at `depth` of a sample, -1 for one that could not be read. */
static int line_of(const struct mu_stack_record *record, uint32_t sample, uint32_t depth) {
    struct mu_stack_span span = record->stacks[record->samples[sample].stack - 1];
    uint32_t place = depth < span.count ? record->ids[span.first + depth] : 0;
    return place == 0 ? -1 : record->names.places[place - 1].line;
}

static void test_names_and_lines(void) {
    static const int at[] = {0, 2, 4, 6, 8, 100, -2};
    static const int wanted[] = {10, 10, 12, 9, 0, 0, 10};
    struct image *image = new_image();
    for (int i = 0; i < 7; i++) {
        struct mu_stack_record record;
        push_frames(image, 1, 3, at[i]);
        read_once(image, &record);
        CHECK_INT(record.sample_count, 1);
        CHECK_INT(record.samples[0].tid, 101);
        CHECK_INT(record.stacks[0].count, 3);
        CHECK_INT(line_of(&record, 0, 0), wanted[i]);
        CHECK_INT(record.names.code_count, 1);
        CHECK_INT(record.names.codes[0].function_length, 13);
        CHECK_BYTES(record.names.codes[0].function, "Model.forward", 13);
        CHECK_BYTES(record.names.codes[0].file, "/src/model.py", 13);
        CHECK_INT(record.torn + record.cut + record.incomplete + record.dropped, 0);
        mu_stack_record_reset(&record);
    }
    free_image(image);
}

static void test_by_file(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    push_frames(image, 0, 2, 4);
    CHECK_INT(mu_stack_record_init(&record, &image->reader, NULL), MU_OK);
    CHECK(mu_own_memory_use_file(&record.memory));
    mu_stack_record_round(&record, 0);
    CHECK_INT(record.sample_count, 1);
    CHECK_INT(line_of(&record, 0, 0), 12);
    mu_stack_record_reset(&record);
    free_image(image);
}

/* Equal stacks are kept once, and frames of C code are left out. */
static void test_equal_stacks(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    push_frames(image, 0, 4, 0);
    push_frames(image, 1, 4, 0);
    push_frames(image, 2, 5, 0)->owner = OWNER_C;
    read_once(image, &record);
    CHECK_INT(record.sample_count, 3);
    CHECK_INT(record.stack_count, 1);
    mu_stack_record_reset(&record);
    free_image(image);
}

/* As from Python 3.14 on: pointers to code have a tag, and two owners belong to no function. */
static void test_tagged_code(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    image->reader.layout.frame.code_tag = 3;
    struct frame *frame = push_frames(image, 0, 3, 0);
    frame->code = (char *)frame->code + 1;
    frame->previous->code = (char *)frame->previous->code + 3;
    push_frames(image, 1, 4, 0)->owner = OWNER_C;
    push_frames(image, 2, 4, 0)->owner = OWNER_C + 1;
    read_once(image, &record);
    CHECK_INT(record.sample_count, 3);
    CHECK_INT(record.stack_count, 1);
    CHECK_INT(record.stacks[0].count, 3);
    mu_stack_record_reset(&record);
    free_image(image);
}

static void test_too_deep(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    struct frame *innermost = push_frames(image, 0, 300, 0);
    read_once(image, &record);
    CHECK_INT(record.stacks[0].count, MU_STACK_DEPTH_MAX);
    CHECK_INT(record.samples[0].flags, MU_STACK_CUT);
    mu_stack_record_reset(&record);
    image->chunks[0].frames[0].previous = innermost; /* a circle */
    read_once(image, &record);
    CHECK_INT(record.stacks[0].count, MU_STACK_DEPTH_MAX);
    mu_stack_record_reset(&record);
    free_image(image);
}

/* Every pointer in turn leads to where nothing is, and to what is something else. */
static void test_bad_pointers(void) {
    struct image *image = new_image();
    unsigned char *page =
        mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    CHECK_INT(munmap(page + 4096, 4096), 0);
    void *const bad[] = {page + 4096, page + 4096 - 8,   (void *)8, (void *)-8,
                         (void *)3,   &image->text_type, page};
    void **const pointers[] = {
        (void **)&image->first,
        (void **)&image->interpreter.next,
        (void **)&image->interpreter.threads,
        (void **)&image->threads[0].next,
        (void **)&image->threads[0].cframe,
        (void **)&image->threads[0].chunk,
        (void **)&image->cframes[0].frame,
        (void **)&image->chunks[0].frames[1].previous,
        &image->chunks[0].frames[1].code,
        (void **)&image->chunks[0].frames[1].instruction,
        (void **)&image->code.qualname,
        (void **)&image->code.filename,
        (void **)&image->code.line_table,
        (void **)&image->name.length,
        (void **)&image->table.length,
        (void **)&image->chunks[0].size,
    };
    push_frames(image, 0, 3, 4);
    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
        void *right = *pointers[i];
        for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
            struct mu_stack_record record;
            *pointers[i] = bad[k];
            read_once(image, &record);
            CHECK(record.sample_count <= MU_STACK_THREADS_MAX);
            mu_stack_record_reset(&record);
        }
        *pointers[i] = right;
    }
    struct mu_stack_record record;
    read_once(image, &record);
    CHECK_INT(line_of(&record, 0, 0), 12);
    mu_stack_record_reset(&record);
    munmap(page, 4096);
    free_image(image);
}

static void test_other_objects(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    push_frames(image, 0, 2, 4);
    image->code.type = address_of(&image->text_type);
    read_once(image, &record);
    CHECK_INT(record.stacks[0].count, 2);
    CHECK_INT(line_of(&record, 0, 0), -1);
    CHECK_INT(record.names.code_count, 0);
    mu_stack_record_reset(&record);
    free_image(image);
}

static void test_list_that_changes(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    push_frames(image, 0, 2, 4);
    image->threads[2].previous = NULL; /* as when the one before has ended meanwhile */
    read_once(image, &record);
    CHECK_INT(record.incomplete, 1);
    CHECK_INT(record.sample_count, 1);
    mu_stack_record_reset(&record);
    free_image(image);
}

struct mover {
    struct image *image;
    _Atomic bool stop;
};

/* Calls and returns without a pause. */
static void *move(void *argument) {
    struct mover *mover = argument;
    while (!atomic_load(&mover->stop)) {
        for (int depth = 1; depth < 30; depth++) {
            atomic_store(&mover->image->cframes[0].frame, &mover->image->chunks[0].frames[depth]);
        }
    }
    return NULL;
}

/* A stack that is not marked as torn is one that the thread had: its depth fits its head. */
static void test_moving_thread(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    struct mover mover = {.image = image};
    pthread_t thread;
    push_frames(image, 0, 30, 0);
    push_frames(image, 1, 7, 0);
    CHECK_INT(pthread_create(&thread, NULL, move, &mover), 0);
    CHECK_INT(mu_stack_record_init(&record, &image->reader, NULL), MU_OK);
    for (int i = 0; i < 2000; i++) {
        mu_stack_record_round(&record, 0);
    }
    atomic_store(&mover.stop, true);
    pthread_join(thread, NULL);
    CHECK_INT(record.sample_count, 4000);
    for (uint32_t i = 0; i < record.sample_count; i++) {
        struct mu_stack_span span = record.stacks[record.samples[i].stack - 1];
        if (record.samples[i].tid == 101) {
            CHECK_INT(record.samples[i].flags, 0);
            CHECK_INT(span.count, 7);
        }
    }
    mu_stack_record_reset(&record);
    free_image(image);
}

static void test_json(void) {
    struct image *image = new_image();
    struct mu_stack_record record;
    const struct mu_stack_origin origin = {
        .id = "a", .kind = "dump", .label = "rank_0", .host = "n\"1\n", .rank = 0};
    char *text = NULL;
    size_t length = 0;
    set_text(image, &image->name, "say(\"a\\b\")");
    push_frames(image, 0, 2, 4);
    read_once(image, &record);
    FILE *out = open_memstream(&text, &length);
    mu_stack_record_write(&record, &origin, out);
    fclose(out);
    CHECK(strstr(text, "\"host\":\"n\\\"1\\u000a\"") != NULL ||
          strstr(text, "\"host\":\"n\\\"1\\n\"") != NULL);
    CHECK(strstr(text, "[\"say(\\\"a\\\\b\\\")\",\"/src/model.py\",10]") != NULL);
    CHECK(strstr(text, "\"frames\":[[0,12]]") != NULL);
    CHECK(strstr(text, "\"stacks\":[\n[0,0]]") != NULL);
    free(text);
    mu_stack_record_reset(&record);
    free_image(image);
}

int main(void) {
    test_names_and_lines();
    test_by_file();
    test_equal_stacks();
    test_tagged_code();
    test_too_deep();
    test_bad_pointers();
    test_other_objects();
    test_list_that_changes();
    test_moving_thread();
    test_json();
    return check_report();
}

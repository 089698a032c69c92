#include "hash/md5_lanes.h"

#include <string.h>

static const uint32_t first_state[4] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u};

static void run_to_end(uint32_t *state, struct mu_md5_feed *feed) {
    do {
        mu_md5_run_scalar(state, &feed->at, feed->blocks);
    } while (mu_md5_feed_advance(feed, feed->blocks));
}

void mu_md5_one(struct mu_md5_job *job) {
    struct mu_md5_strided strided;
    struct mu_md5_feed feed;
    uint32_t state[4];
    memcpy(state, first_state, sizeof state);
    mu_md5_feed_start(&feed, job->tensor, &strided);
    run_to_end(state, &feed);
    memcpy(job->digest, state, sizeof state);
}

/* --- lanes ----------------------------------------------------------------------------------- */

/* One run of a list through the lanes. */
struct run {
    struct mu_md5_lanes *lanes;        /* borrowed */
    const struct mu_md5_item *next;    /* borrowed: the first message that waits for a lane */
    const struct mu_md5_width *kernel; /* borrowed */
    int width;                         /* its lanes */
    int active;                        /* lanes with a message */
};

static void set_state(struct run *run, int lane, const uint32_t state[4]) {
    for (int word = 0; word < 4; word++) {
        run->lanes->states[word * run->width + lane] = state[word];
    }
}

static void get_state(const struct run *run, int lane, uint32_t state[4]) {
    for (int word = 0; word < 4; word++) {
        state[word] = run->lanes->states[word * run->width + lane];
    }
}

/* Puts the next message into a lane that has none. */
static void load_lane(struct run *run, int lane) {
    struct mu_md5_lane *to = &run->lanes->of[lane];
    to->job = NULL;
    if (run->next == NULL) {
        return;
    }
    to->job = run->next->job;
    run->next = run->next->next;
    run->active++;
    set_state(run, lane, first_state);
    struct mu_md5_strided *strided = run->lanes->strided;
    mu_md5_feed_start(to->feed, to->job->tensor, strided == NULL ? NULL : &strided[lane]);
}

static void load_lanes(struct run *run) {
    memset(run->lanes->states, 0, sizeof run->lanes->states); /* idle lanes compute, too */
    for (int lane = 0; lane < run->width; lane++) {
        run->lanes->of[lane].feed = &run->lanes->feeds[lane];
        load_lane(run, lane);
    }
}

/* Points all lanes at their data, and returns the number of blocks that every message has ready.
 * Idle lanes get the data of another lane, because they compute too. */
static size_t common_blocks(struct run *run) {
    struct mu_md5_lanes *lanes = run->lanes;
    const uint8_t *readable = NULL;
    size_t blocks = SIZE_MAX;
    for (int lane = 0; lane < run->width; lane++) {
        if (lanes->of[lane].job != NULL) {
            const struct mu_md5_feed *feed = lanes->of[lane].feed;
            blocks = feed->blocks < blocks ? feed->blocks : blocks;
            readable = lanes->data[lane] = feed->at;
        }
    }
    for (int lane = 0; lane < run->width; lane++) {
        if (lanes->of[lane].job == NULL) {
            lanes->data[lane] = readable;
        }
    }
    return blocks;
}

/* Moves the remaining messages into the first lanes, and goes on with a kernel of so few. */
static void narrow(struct run *run, const struct mu_md5_width *kernel) {
    uint32_t states[MU_MD5_LANES_MAX][4];
    struct mu_md5_lane *of = run->lanes->of;
    int count = 0;
    for (int lane = 0; lane < run->width; lane++) {
        if (of[lane].job != NULL) {
            get_state(run, lane, states[count]);
            of[count++] = of[lane];
        }
    }
    run->kernel = kernel;
    run->width = kernel->lanes;
    for (int lane = 0; lane < run->width; lane++) {
        if (lane < count) {
            set_state(run, lane, states[lane]);
        } else {
            of[lane].job = NULL;
        }
    }
}

static void finish_lane(struct run *run, int lane, struct mu_md5_job *job) {
    uint32_t state[4];
    get_state(run, lane, state);
    memcpy(job->digest, state, sizeof state);
    run->active--;
    load_lane(run, lane);
}

/* Alone, a message is done sooner by the scalar code. */
static void finish_last(struct run *run) {
    for (int lane = 0; lane < run->width; lane++) {
        struct mu_md5_job *job = run->lanes->of[lane].job;
        if (job != NULL) {
            uint32_t state[4];
            get_state(run, lane, state);
            run_to_end(state, run->lanes->of[lane].feed);
            memcpy(job->digest, state, sizeof state);
        }
    }
}

static void run_scalar(const struct mu_md5_item *list) {
    for (const struct mu_md5_item *item = list; item != NULL; item = item->next) {
        mu_md5_one(item->job);
    }
}

/* Runs as many blocks as all messages have ready. */
static void run_common(struct run *run) {
    size_t blocks = common_blocks(run);
    run->kernel->run(run->lanes->states, run->lanes->data, blocks);
    for (int lane = 0; lane < run->width; lane++) {
        struct mu_md5_lane *of = &run->lanes->of[lane];
        if (of->job != NULL && !mu_md5_feed_advance(of->feed, blocks)) {
            finish_lane(run, lane, of->job);
        }
    }
}

/* What a message costs, in bytes. */
static double cost(const struct mu_md5_item *item) {
    return (double)item->bytes + MU_MD5_BLOCK;
}

/* The least that one of the lanes has to get through: where there are more messages than lanes, two
 * of as many as there are lanes and one more. */
static double busiest_lane(const struct mu_md5_item *list, int lanes) {
    const struct mu_md5_item *last = list;
    for (int i = 1; i < lanes && last != NULL; i++) {
        last = last->next;
    }
    double two = last == NULL || last->next == NULL ? 0 : cost(last) + cost(last->next);
    return cost(list) > two ? cost(list) : two;
}

/* The kernel that is done first with all messages. More lanes get through more bytes, but each of
 * them is slower, so that a giant ends later. What its lane has beyond the mean is left to run
 * alone, in the narrowest kernel. */
static const struct mu_md5_width *best_width(const struct mu_md5_kernel *kernel,
                                             const struct mu_md5_item *list) {
    const struct mu_md5_width *best = NULL;
    const struct mu_md5_width *narrowest = &kernel->widths[kernel->count - 1];
    double all = 0, least = 0;
    for (const struct mu_md5_item *item = list; item != NULL; item = item->next) {
        all += cost(item);
    }
    for (const struct mu_md5_width *width = kernel->widths; width <= narrowest; width++) {
        /* In the widest, two messages in a lane are no loss: the last ones go on in fewer lanes. */
        double busiest = width == kernel->widths ? cost(list) : busiest_lane(list, width->lanes);
        double beyond = busiest - all / width->lanes;
        double time = all / width->speed;
        time += beyond > 0 ? beyond * narrowest->lanes / narrowest->speed : 0;
        if (best == NULL || time < least) {
            best = width;
            least = time;
        }
    }
    return best;
}

void mu_md5_lanes_run(struct mu_md5_lanes *lanes, struct mu_md5_kernel kernel,
                      const struct mu_md5_item *list) {
    if (kernel.lanes == 1 || list == NULL || list->next == NULL) {
        run_scalar(list);
        return;
    }
    const struct mu_md5_width *width = best_width(&kernel, list);
    const struct mu_md5_width *narrowest = &kernel.widths[kernel.count - 1];
    struct run run = {.lanes = lanes, .next = list, .kernel = width, .width = width->lanes};
    load_lanes(&run);
    while (run.active > 1) {
        while (width < narrowest && run.active <= width[1].lanes) {
            narrow(&run, ++width);
        }
        run_common(&run);
    }
    finish_last(&run);
}

/* Follows the IDs of a bus: gaps, schedules, and which IDs are overdue. */
#include "kdgat_car.h"

#include <math.h>
#include <string.h>

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

/* An ID is overdue after this many times its usual gap. */
#define OVERDUE_GAPS 3.0
/* Least weight of the newest gap in the running mean. */
#define NEWEST_WEIGHT (1.0 / 16.0)
/* A frame is on schedule if it comes at least this many usual gaps after the last one that was. */
#define ON_SCHEDULE 0.7

static double clamp(double value, double low, double high)
{
    return value < low ? low : (value > high ? high : value);
}

/* Place in by_id of the first ID that is not below id. */
static uint32_t place_of(const kdgat_history *history, uint32_t id)
{
    uint32_t low = 0, high = history->num_ids;
    while (low < high) {
        const uint32_t middle = (low + high) / 2u;
        if (history->latest[history->by_id[middle]].id < id) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Number of the entry of an ID; KDGAT_HISTORY_IDS if it has none. */
static uint32_t entry_of(const kdgat_history *history, uint32_t id)
{
    const uint32_t place = place_of(history, id);
    if (place < history->num_ids && history->latest[history->by_id[place]].id == id) {
        return history->by_id[place];
    }
    return KDGAT_HISTORY_IDS;
}

/* Makes an entry free: that of the ID with the fewest frames, and of those the one that has been silent for longest. Returns it. */
static uint16_t forget_one(kdgat_history *history)
{
    uint32_t place, worst = 0;
    uint16_t entry;
    for (place = 1; place < history->num_ids; place++) {
        const kdgat_latest *const one = &history->latest[history->by_id[place]];
        const kdgat_latest *const other = &history->latest[history->by_id[worst]];
        const uint32_t frames = one->frames < KDGAT_FEWEST_FRAMES ? one->frames : KDGAT_FEWEST_FRAMES;
        const uint32_t of_other = other->frames < KDGAT_FEWEST_FRAMES ? other->frames : KDGAT_FEWEST_FRAMES;
        if (frames < of_other || (frames == of_other && one->index < other->index)) {
            worst = place;
        }
    }
    entry = history->by_id[worst];
    history->num_ids--;
    memmove(&history->by_id[worst], &history->by_id[worst + 1u], (history->num_ids - worst) * sizeof history->by_id[0]);
    return entry;
}

/* Adds an entry for an ID that has none; returns it. */
static kdgat_latest *add(kdgat_history *history, uint32_t id)
{
    const uint16_t entry = history->num_ids < KDGAT_HISTORY_IDS ? (uint16_t)history->num_ids : forget_one(history);
    const uint32_t place = place_of(history, id);
    memmove(&history->by_id[place + 1u], &history->by_id[place], (history->num_ids - place) * sizeof history->by_id[0]);
    history->by_id[place] = entry;
    history->num_ids++;
    memset(&history->latest[entry], 0, sizeof history->latest[entry]);
    history->latest[entry].id = id;
    history->latest[entry].before = (double)NAN;
    return &history->latest[entry];
}

/* Moves the schedule of an ID on by a frame `since` seconds after the last frame on schedule. */
static void advance_schedule(kdgat_latest *latest, double time, double since)
{
    const double usual = latest->usual_gap, least = usual > 1e-6 ? usual : 1e-6;
    double newest, weight;
    if (latest->frames >= KDGAT_FEWEST_FRAMES && since < ON_SCHEDULE * usual && since >= 0.0) {
        return;
    }
    newest = latest->frames == 1u ? (since > 0.0 ? since : 0.0) : clamp(since, 0.0, OVERDUE_GAPS * least);
    weight = 1.0 / (double)latest->frames;
    weight = weight > NEWEST_WEIGHT ? weight : NEWEST_WEIGHT;
    latest->usual_gap += weight * (newest - usual);
    latest->scheduled = time;
}

void kdgat_observe(kdgat_history *history, const kdgat_frame *frame, kdgat_fact *fact)
{
    const uint32_t entry = entry_of(history, frame->id);
    kdgat_latest *const latest = entry < KDGAT_HISTORY_IDS ? &history->latest[entry] : add(history, frame->id);
    uint32_t byte;

    memset(fact, 0, sizeof *fact);
    if (latest->frames == 0u) {
        latest->scheduled = frame->time;
        fact->gap = NAN;
    } else {
        const int repeats = memcmp(frame->data, latest->payload, sizeof frame->data) == 0;
        fact->gap = (float)clamp(frame->time - latest->time, -KDGAT_LONGEST_GAP, KDGAT_LONGEST_GAP);
        memcpy(fact->previous, latest->payload, sizeof fact->previous);
        fact->has_previous = 1;
        fact->returns = (uint8_t)(!repeats && latest->has_earlier && memcmp(frame->data, latest->earlier, sizeof frame->data) == 0);
        for (byte = 0; byte < sizeof latest->payload; byte++) {
            const uint8_t before = latest->repeated[byte];
            fact->repeated[byte] = frame->data[byte] != latest->payload[byte] ? 0u : (uint8_t)(before < 255u ? before + 1u : 255u);
        }
        advance_schedule(latest, frame->time, frame->time - latest->scheduled);
        memcpy(latest->earlier, latest->payload, sizeof latest->earlier);
        latest->has_earlier = 1;
    }
    latest->time = frame->time;
    latest->index = history->observed++;
    latest->frames += latest->frames < UINT32_MAX ? 1u : 0u;
    latest->length = frame->length;
    memcpy(latest->payload, frame->data, sizeof latest->payload);
    memcpy(latest->repeated, fact->repeated, sizeof latest->repeated);
    fact->scheduled = latest->scheduled;
}

void kdgat_pass(kdgat_history *history, uint32_t id, const kdgat_fact *fact)
{
    const uint32_t entry = entry_of(history, id);
    if (entry < KDGAT_HISTORY_IDS) {
        history->latest[entry].before = fact->scheduled;
    }
}

void kdgat_find_overdue(kdgat_history *history, uint64_t first_frame, double end)
{
    double ranks[KDGAT_MOST_OVERDUE]; /* descending */
    uint32_t number = 0, place, entry;

    for (entry = 0; entry < history->num_ids; entry++) {
        const kdgat_latest *const latest = &history->latest[history->by_id[entry]];
        const double silence = end - latest->time;
        double rank;
        if (latest->index >= first_frame || latest->frames < KDGAT_FEWEST_FRAMES || !(silence > OVERDUE_GAPS * latest->usual_gap)
            || !(latest->usual_gap > 0.0)) {
            continue;
        }
        rank = silence / latest->usual_gap;
        if (number < KDGAT_MOST_OVERDUE) {
            place = number++;
        } else if (rank > ranks[KDGAT_MOST_OVERDUE - 1u]) {
            place = KDGAT_MOST_OVERDUE - 1u;
        } else {
            continue;
        }
        /* IDs ascend, so of equal ranks the lower ID stays first. */
        for (; place > 0u && ranks[place - 1u] < rank; place--) {
            ranks[place] = ranks[place - 1u];
            history->overdue[place] = history->overdue[place - 1u];
            history->silence[place] = history->silence[place - 1u];
        }
        ranks[place] = rank;
        history->overdue[place] = latest->id;
        history->silence[place] = (float)(silence < KDGAT_LONGEST_GAP ? silence : KDGAT_LONGEST_GAP);
    }
    history->num_overdue = number;
    /* By ascending ID. */
    for (entry = 1; entry < number; entry++) {
        const uint32_t id = history->overdue[entry];
        const float silence = history->silence[entry];
        for (place = entry; place > 0u && history->overdue[place - 1u] > id; place--) {
            history->overdue[place] = history->overdue[place - 1u];
            history->silence[place] = history->silence[place - 1u];
        }
        history->overdue[place] = id;
        history->silence[place] = silence;
    }
}

float kdgat_silence(const kdgat_history *history, uint32_t id)
{
    uint32_t place = 0;
    while (place < history->num_overdue && history->overdue[place] < id) {
        place++;
    }
    return place < history->num_overdue && history->overdue[place] == id ? history->silence[place] : NAN;
}

float kdgat_scheduled(const kdgat_history *history, uint32_t id, double begin)
{
    const uint32_t entry = entry_of(history, id);
    /* The difference of NaN is NaN, which no comparison clamps. */
    return entry < KDGAT_HISTORY_IDS ? (float)clamp(history->latest[entry].before - begin, -KDGAT_LONGEST_GAP, KDGAT_LONGEST_GAP) : NAN;
}

#endif

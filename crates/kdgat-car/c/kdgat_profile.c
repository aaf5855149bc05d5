/* Node features of the profile set: deviations from what is usual for the node's ID. They are 0 or near it for usual traffic, and grow
 * with the logarithm of a deviation. An unknown ID has UNKNOWN and SHARE only. */
#include "kdgat_car.h"

#include <math.h>
#include <string.h>

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

/* Columns, in the order of the trainer's docs/data.md. */
enum {
    UNKNOWN,
    EARLY,
    OFF_SCHEDULE,
    OFF_SCHEDULE_DEPTH,
    OFF_SCHEDULE_BYTES,
    SHORTEST_GAP,
    MEAN_GAP,
    COUNT,
    SHARE,
    JUMPS,
    LARGE_JUMPS,
    LARGEST_JUMP,
    CHANGED_BYTES,
    REPEATS,
    RETURNS,
    SILENCE,
    IRREGULARITY,
    CONFIDENCE,
    PERIOD,
    DISAGREEMENT,
    COMPARED,
    STANDSTILL
};

/* Upper limit of logarithms of ratios. */
#define MOST 4.0f
/* Smallest duration in a ratio, in seconds. */
#define SHORTEST_SECONDS 1e-6f
/* Share of the shortest usual gap below which a frame is off schedule. */
#define ON_SCHEDULE 0.9f
/* Seconds by which another drive may bring a frame sooner than usual. */
#define JITTER_SECONDS 0.0035f
/* Share of the median gap up to which the jitter does not count: a limit above one half finds every injected frame. */
#define INJECTED 0.6f
/* Margin of the shortest usual gap for an ID with few gaps. */
#define MARGIN 5.0f
/* -ln of the share of gaps below the 0.1 % quantile, or above the 99.9 % quantile. */
#define UNUSUAL_GAP 6.907755f
/* -ln of the share of changes above the 99.99 % quantile. */
#define UNUSUAL_CHANGE 9.21034f
/* Disagreement of signals, in units of what is usual, from which more does not count. */
#define MOST_DISAGREEMENT 10.0f
/* Gaps for each frame of the longest standstill, from which on a longer one is unusual. */
#define EVIDENCE 1000.0f
/* A standstill is unusual beyond this multiple of the longest one in the profile, plus so many frames. */
#define LONGER 2.0f
#define MORE_FRAMES 6.0f
/* Most repetitions in a row that are counted. */
#define MOST_REPEATED 255.0f

static float clamp(float value, float low, float high)
{
    return value < low ? low : (value > high ? high : value);
}

static float larger(float a, float b)
{
    return a > b ? a : b;
}

static float smaller(float a, float b)
{
    return a < b ? a : b;
}

/* ln(1 + count), at most 3. */
static float log_count(float count)
{
    const float value = log1pf(count);
    return value < 3.0f ? value : 3.0f;
}

/* Limits derived from an ID's profile. */
typedef struct {
    float low;         /* shortest usual gap: less than its quantile for an ID with few or irregular gaps */
    float on_schedule; /* a frame that comes sooner than this after the last one on schedule is off schedule */
    float high;        /* silence from which a regular ID is overdue; infinite for others */
    float payload;     /* largest usual number of repetitions of a payload; infinite if too little is known */
    float byte;        /* the same for a byte that changed in every frame */
} limits;

/* Largest usual number of repetitions, if the longest standstill has `longest`. */
static float most_repetitions(const kdgat_usual *usual, float longest)
{
    const float frames = longest + 1.0f;
    return usual->gaps >= EVIDENCE * frames ? LONGER * frames + MORE_FRAMES : INFINITY;
}

/* Sets the limits, and the features that describe the profile itself. */
static limits limits_of(const kdgat_usual *usual, float *row)
{
    const float trust = 1.0f - MARGIN / sqrtf(usual->gaps + MARGIN * MARGIN);
    const float low = larger(usual->gap_low, SHORTEST_SECONDS), median = larger(usual->gap_median, SHORTEST_SECONDS);
    const float ratio = low / median;
    limits found;
    row[IRREGULARITY] = clamp(logf(median / low), 0.0f, MOST);
    row[CONFIDENCE] = log10f(1.0f + usual->gaps) / 2.0f;
    row[PERIOD] = clamp(log10f(median / 0.1f), -2.0f, 2.0f);
    found.low = usual->gap_low * trust * sqrtf(ratio < 1.0f ? ratio : 1.0f);
    found.on_schedule = smaller(ON_SCHEDULE * found.low, larger(INJECTED * median, median - JITTER_SECONDS));
    found.high = INFINITY;
    if (usual->gaps >= 50.0f && row[IRREGULARITY] < 0.4f && usual->gap_high < 3.0f * median) {
        found.high = usual->gap_high / larger(trust, 0.09f);
    }
    found.payload = most_repetitions(usual, (float)usual->longest_standstill);
    /* Longer standstills than a limit have to be told apart from it. */
    found.payload = found.payload < MOST_REPEATED ? found.payload : INFINITY;
    found.byte = most_repetitions(usual, 0.0f);
    return found;
}

/* Repetitions of a frame's payload, and of its bytes that change in every frame, divided by the largest usual number: the largest ratio. */
static float standstill(const kdgat_usual *usual, const limits *limit, const kdgat_fact *fact)
{
    uint8_t of_payload = 255u;
    float most;
    uint32_t byte;
    for (byte = 0; byte < KDGAT_PROFILE_BYTES; byte++) {
        of_payload = fact->repeated[byte] < of_payload ? fact->repeated[byte] : of_payload;
    }
    most = (float)of_payload / limit->payload;
    for (byte = 0; byte < KDGAT_PROFILE_BYTES; byte++) {
        if ((usual->repeating >> byte & 1u) == 0u) {
            most = larger(most, (float)fact->repeated[byte] / limit->byte);
        }
    }
    return most;
}

/* Sums over the frames of a node. */
typedef struct {
    float gaps;
    float log_gaps;
    float early;
    float off_schedule;
    float depth;
    float off_schedule_bytes;
    float shortest;
    float jumps;
    float large_jumps;
    float largest_jump;
    float changed;
    float pairs;
    float repeats;
    float returns;
    float standstill; /* largest number of repetitions, in units of the largest usual one */
    int unseen; /* 1: a byte has a value that it never had */
} sums_of_node;

static void add_gap(sums_of_node *sums, const kdgat_usual *usual, float low, float gap)
{
    /* NaN without a previous frame. */
    if (gap != gap || usual->gap_median <= 0.0f) {
        return;
    }
    gap = larger(gap, SHORTEST_SECONDS);
    sums->gaps += 1.0f;
    sums->log_gaps += clamp(logf(gap / usual->gap_median), -MOST, MOST);
    sums->early += gap < 0.5f * low ? 1.0f : 0.0f;
    sums->shortest = larger(sums->shortest, clamp(logf(larger(low, SHORTEST_SECONDS) / gap), -MOST, MOST));
}

/* Adds a payload; returns 1 if a byte has a value that it never had, or jumps. */
static int add_bytes(sums_of_node *sums, const kdgat_usual *usual, const kdgat_frame *frame, const kdgat_fact *fact)
{
    const uint32_t length = frame->length < KDGAT_PROFILE_BYTES ? frame->length : KDGAT_PROFILE_BYTES;
    int unusual = 0;
    uint32_t byte;

    for (byte = 0; byte < length; byte++) {
        const uint8_t value = frame->data[byte];
        if ((usual->seen[byte][value / 8u] >> (value % 8u) & 1) == 0) {
            unusual = 1;
            sums->unseen = 1;
        }
        if (fact->has_previous) {
            const int difference = (int)value - (int)fact->previous[byte];
            const float change = (float)(difference < 0 ? -difference : difference);
            const float most = (float)usual->change_most[byte];
            if (change > (float)usual->change_high[byte] + 1.0f) {
                sums->jumps += 1.0f;
                unusual = 1;
            }
            sums->large_jumps += change > 2.0f * most + 2.0f ? 1.0f : 0.0f;
            sums->changed += change > 0.0f ? 1.0f : 0.0f;
            if (change > most) {
                sums->largest_jump = larger(sums->largest_jump, logf((change + 1.0f) / (most + 2.0f)));
            }
        }
    }
    if (fact->has_previous) {
        sums->pairs += 1.0f;
        sums->repeats += memcmp(fact->previous, frame->data, sizeof frame->data) == 0 ? 1.0f : 0.0f;
    }
    return unusual;
}

/* Sets the features of a node with `count` frames. */
static void fill(const sums_of_node *sums, float *row, const kdgat_usual *usual, float count, float duration)
{
    const float expected = usual->gap_mean > 0.0f ? duration / usual->gap_mean : 0.0f;
    row[EARLY] = log_count(sums->early);
    row[OFF_SCHEDULE] = log_count(sums->off_schedule);
    row[OFF_SCHEDULE_DEPTH] = sums->depth;
    row[OFF_SCHEDULE_BYTES] = log_count(sums->off_schedule_bytes);
    row[SHORTEST_GAP] = sums->shortest;
    row[MEAN_GAP] = sums->log_gaps / larger(sums->gaps, 1.0f);
    row[COUNT] = clamp(logf((count + 0.5f) / (expected + 0.5f)), -3.0f, 3.0f);
    row[JUMPS] = log_count(sums->jumps);
    row[LARGE_JUMPS] = log_count(sums->large_jumps);
    row[LARGEST_JUMP] = clamp(sums->largest_jump, 0.0f, MOST);
    if (sums->pairs > 0.0f) {
        row[CHANGED_BYTES] = (sums->changed / sums->pairs - usual->changed_bytes) / (float)KDGAT_PROFILE_BYTES;
        row[REPEATS] = sums->repeats / sums->pairs - usual->repeats;
    }
    row[RETURNS] = log_count(larger(sums->returns - count * usual->returns, 0.0f));
    row[STANDSTILL] = sums->standstill > 1.0f ? clamp(logf(sums->standstill), 0.0f, MOST) : 0.0f;
}

/* Sum of the surprises of a node's unusual frames: -ln of their shares in attack-free traffic. Unusual bytes count once. */
static float surprise_of(const sums_of_node *sums, const kdgat_usual *usual)
{
    const float unseen = sums->unseen ? logf(usual->gaps + 2.0f) : 0.0f;
    const float jump = sums->jumps > 0.0f ? UNUSUAL_CHANGE : 0.0f;
    const float still = sums->standstill > 1.0f ? UNUSUAL_CHANGE + logf(sums->standstill) : 0.0f;
    return UNUSUAL_GAP * sums->off_schedule + larger(unseen, jump) + still;
}

/* What is usual for an ID; NULL for an unknown one. */
static const kdgat_usual *usual_of(const kdgat_profile *profile, uint32_t id)
{
    uint32_t low = 0, high = profile->num_ids;
    while (low < high) {
        const uint32_t middle = (low + high) / 2u;
        if (profile->ids[middle].id < id) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low < profile->num_ids && profile->ids[low].id == id ? &profile->ids[low] : NULL;
}

/* Removes the deviations of values and changes of bytes. */
static void without_bytes(float *row)
{
    row[OFF_SCHEDULE_BYTES] = row[JUMPS] = row[LARGE_JUMPS] = row[LARGEST_JUMP] = 0.0f;
    row[CHANGED_BYTES] = row[REPEATS] = row[RETURNS] = row[STANDSTILL] = 0.0f;
}

/* Deviations of the node that has the frames at `positions`; returns its surprise. */
static float deviations(const kdgat_window_state *window, const kdgat_profile *profile, uint32_t id, const uint16_t *positions,
                        uint32_t number, float duration, float *row, uint8_t *unusual_bytes)
{
    const kdgat_frame *const frames = window->frames;
    const double begin = frames[0].time, end = frames[KDGAT_WINDOW - 1u].time;
    const kdgat_usual *const usual = usual_of(profile, id);
    float silence, latest, surprise = 0.0f;
    limits limit;
    sums_of_node sums;
    uint32_t i;

    row[SHARE] = 4.0f * (float)number / (float)KDGAT_WINDOW;
    if (usual == NULL) {
        row[UNKNOWN] = number > 0u ? profile->new_id_surprise / 10.0f : 0.0f;
        return profile->new_id_surprise * (float)number;
    }
    limit = limits_of(usual, row);
    silence = number > 0u ? (float)(end - frames[positions[number - 1u]].time) : kdgat_silence(&window->history, id);
    if (silence / limit.high > 1.0f) {
        row[SILENCE] = clamp(logf(silence / limit.high), 0.0f, MOST);
        surprise = UNUSUAL_GAP + logf(silence / limit.high);
    }
    if (number == 0u) {
        /* An ID without frames has nothing but its silence. */
        row[IRREGULARITY] = row[CONFIDENCE] = row[PERIOD] = 0.0f;
        return surprise;
    }
    memset(&sums, 0, sizeof sums);
    latest = kdgat_scheduled(&window->history, id, begin);
    for (i = 0; i < number; i++) {
        const kdgat_frame *const frame = &frames[positions[i]];
        const kdgat_fact *const fact = &window->history.facts[positions[i]];
        const float time = (float)(frame->time - begin), since = time - latest;
        int unusual;
        add_gap(&sums, usual, limit.low, fact->gap);
        unusual = add_bytes(&sums, usual, frame, fact);
        /* Without a frame before, the comparison with NaN is false. */
        if (since < limit.on_schedule) {
            sums.off_schedule += 1.0f;
            sums.depth = larger(sums.depth, clamp(logf(limit.low / larger(since, SHORTEST_SECONDS)), 0.0f, MOST));
            sums.off_schedule_bytes += unusual ? 1.0f : 0.0f;
        } else {
            latest = time;
        }
        sums.returns += fact->returns ? 1.0f : 0.0f;
        sums.standstill = larger(sums.standstill, standstill(usual, &limit, fact));
    }
    fill(&sums, row, usual, (float)number, duration);
    if (sums.unseen || sums.jumps > 0.0f) {
        *unusual_bytes = 1;
    }
    if (!profile->counts_bytes) {
        without_bytes(row);
        sums.unseen = 0;
        sums.jumps = 0.0f;
        sums.standstill = 0.0f;
    }
    return surprise + surprise_of(&sums, usual);
}

kdgat_profile kdgat_profile_of(const kdgat_calibration_state *car)
{
    kdgat_profile profile;
    if (car->calibrated) {
        profile.ids = car->usual;
        profile.num_ids = car->num_usual;
        profile.new_id_surprise = car->new_id_surprise;
        profile.counts_bytes = car->counts_bytes;
    } else {
        profile.ids = kdgat_profile_ids;
        profile.num_ids = KDGAT_PROFILE_IDS;
        profile.new_id_surprise = KDGAT_NEW_ID_SURPRISE;
        profile.counts_bytes = 1;
    }
    return profile;
}

/* Sets DISAGREEMENT and COMPARED. A window in which more than a quarter of the compared IDs disagree, and more than three, is of a state of
 * the car that the relations do not cover: an attack forges few signals. */
static void disagreements(const kdgat_window_state *window, kdgat_graph *graph)
{
    uint32_t all = 0, disagreeing = 0, node;
    int covered;

    for (node = 0; node < graph->num_nodes; node++) {
        const float found = kdgat_disagreement(window, graph, node);
        graph->continuous[node][DISAGREEMENT] = found;
        all += found >= 0.0f ? 1u : 0u;
        disagreeing += found > 1.0f ? 1u : 0u;
    }
    covered = !(disagreeing > 3u && 4u * disagreeing > all);
    for (node = 0; node < graph->num_nodes; node++) {
        float *const row = graph->continuous[node];
        const int compared = covered && row[DISAGREEMENT] >= 0.0f;
        if (compared && row[DISAGREEMENT] > 1.0f) {
            graph->surprise[node] += UNUSUAL_GAP * smaller(row[DISAGREEMENT], MOST_DISAGREEMENT);
        }
        row[DISAGREEMENT] = compared ? clamp(log1pf(row[DISAGREEMENT] * row[DISAGREEMENT]), 0.0f, MOST) : 0.0f;
        row[COMPARED] = compared ? 1.0f : 0.0f;
    }
}

void kdgat_deviations(const kdgat_window_state *window, const kdgat_calibration_state *car, kdgat_graph *graph)
{
    const kdgat_profile profile = kdgat_profile_of(car);
    const kdgat_order *const order = &window->order;
    float duration;
    uint32_t node, at;

    graph->duration = 0.0f;
    for (at = 0; at < KDGAT_WINDOW; at++) {
        graph->duration = larger(graph->duration, (float)(window->frames[at].time - window->frames[0].time));
    }
    duration = larger(graph->duration, SHORTEST_SECONDS);
    graph->unusual_bytes = 0;
    for (node = 0; node < graph->num_nodes; node++) {
        const uint32_t first = order->first[node], number = (uint32_t)order->first[node + 1u] - first;
        memset(graph->continuous[node], 0, sizeof graph->continuous[node]);
        graph->silence[node] = number > 0u ? 0.0f : kdgat_silence(&window->history, graph->can_id[node]);
        graph->surprise[node] =
            deviations(window, &profile, graph->can_id[node], &order->by_source[first], number, duration, graph->continuous[node],
                       &graph->unusual_bytes);
    }
    if (!car->calibrated) {
        disagreements(window, graph);
    }
}

#endif

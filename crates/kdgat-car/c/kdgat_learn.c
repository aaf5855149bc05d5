/* Learns the profile of a car: one ID after the other, each in a pass over the recording. */
#include "kdgat_learn.h"

#include <math.h>
#include <string.h>

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

#define SHORTEST_SECONDS 1e-6
#define BINS_PER_OCTAVE 32.0

/* Index of the first count up to which at least `share` of all lie, and at least one; `number` if there are none. */
static uint32_t quantile_of(const uint32_t *counts, uint32_t number, double share)
{
    double total = 0.0, sum = 0.0, wanted;
    uint32_t i;
    for (i = 0; i < number; i++) {
        total += (double)counts[i];
    }
    wanted = ceil(share * total);
    wanted = wanted > 1.0 ? wanted : 1.0;
    for (i = 0; i < number; i++) {
        sum += (double)counts[i];
        if (total > 0.0 && sum >= wanted) {
            return i;
        }
    }
    return number;
}

/* Gap that a share of all gaps does not exceed, in seconds; 0 without gaps. */
static float gap_of(const kdgat_counts *counts, double share)
{
    const uint32_t bin = quantile_of(counts->gaps, KDGAT_GAP_BINS, share);
    return bin < KDGAT_GAP_BINS ? (float)(SHORTEST_SECONDS * exp2((double)bin / BINS_PER_OCTAVE)) : 0.0f;
}

static float of_pairs(const kdgat_counts *counts, uint32_t number)
{
    return counts->pairs == 0u ? 0.0f : (float)((double)number / (double)counts->pairs);
}

/* Sums of a part of the recording, in seconds. */
typedef struct {
    double gaps;
    double watched; /* without pauses of the logs */
} sums_of_part;

/* Frames of the log that begins with frame `begin`, up to one of them. */
typedef struct {
    const kdgat_frame *frames;
    uint32_t begin;
    uint32_t end;
} frames_until;

/* Seconds without pauses of the log of a silence up to the last of these frames. */
static float without_pauses(const frames_until *until, float silence)
{
    const double begin = until->frames[until->end].time - (double)silence;
    double seconds = (double)silence;
    uint32_t at;
    if (!(seconds > KDGAT_LONGEST_STEP)) {
        return silence;
    }
    for (at = until->end; at > until->begin && begin < until->frames[at].time - KDGAT_LONGEST_STEP / 2.0; at--) {
        const double step = until->frames[at].time - until->frames[at - 1u].time;
        seconds -= step > KDGAT_LONGEST_STEP ? step : 0.0;
    }
    return seconds > 0.0 ? (float)seconds : 0.0f;
}

static void add_gap(kdgat_counts *counts, float gap, float watched, sums_of_part *sums)
{
    const double seconds = (double)gap, least = seconds > SHORTEST_SECONDS ? seconds : SHORTEST_SECONDS;
    const double bin = round(BINS_PER_OCTAVE * log2(least / SHORTEST_SECONDS));
    counts->gaps[bin < (double)KDGAT_GAP_BINS ? (uint32_t)bin : KDGAT_GAP_BINS - 1u]++;
    sums->gaps += seconds > 0.0 ? seconds : 0.0;
    sums->watched += watched > 0.0f ? (double)watched : 0.0;
    counts->longest_gap = watched > counts->longest_gap ? watched : counts->longest_gap;
}

/* Adds the repetitions of a payload and its bytes. */
static void add_repetitions(const kdgat_fact *fact, kdgat_usual *usual)
{
    uint8_t of_payload = 255u;
    uint32_t byte;
    for (byte = 0; byte < KDGAT_PROFILE_BYTES; byte++) {
        const uint8_t repeated = fact->repeated[byte];
        of_payload = repeated < of_payload ? repeated : of_payload;
        usual->repeating = (uint8_t)(usual->repeating | (repeated > 0u ? 1u << byte : 0u));
    }
    usual->longest_standstill = of_payload > usual->longest_standstill ? of_payload : usual->longest_standstill;
}

/* Adds the last of these frames, one of the ID. */
static void add_frame(kdgat_counts *counts, const frames_until *until, const kdgat_fact *fact, kdgat_usual *usual, sums_of_part *sums)
{
    const kdgat_frame *const frame = &until->frames[until->end];
    uint32_t byte;

    counts->frames++;
    for (byte = 0; byte < KDGAT_PROFILE_BYTES && byte < frame->length; byte++) {
        const uint8_t value = frame->data[byte];
        usual->seen[byte][value / 8u] = (uint8_t)(usual->seen[byte][value / 8u] | 1u << (value % 8u));
    }
    if (!fact->has_previous) {
        return;
    }
    counts->pairs++;
    add_repetitions(fact, usual);
    add_gap(counts, fact->gap, without_pauses(until, fact->gap), sums);
    counts->returns += fact->returns;
    counts->repeats += memcmp(frame->data, fact->previous, sizeof frame->data) == 0 ? 1u : 0u;
    for (byte = 0; byte < KDGAT_PROFILE_BYTES; byte++) {
        const int difference = (int)frame->data[byte] - (int)fact->previous[byte];
        counts->changes[byte][difference < 0 ? -difference : difference]++;
        counts->changed_bytes += difference != 0 ? 1u : 0u;
    }
}

int kdgat_begins_log(const kdgat_recording *recording, uint32_t window)
{
    return window < recording->windows && (recording->begins_log[window / 8u] >> (window % 8u) & 1) != 0;
}

uint32_t kdgat_step(const kdgat_recording *recording, uint32_t window)
{
    return kdgat_begins_log(recording, window + 1u) ? KDGAT_WINDOW_FRAMES : KDGAT_STRIDE;
}

/* First window of a part. */
static uint32_t begin_of(const kdgat_recording *recording, uint32_t part)
{
    return (uint32_t)((uint64_t)recording->windows * part / KDGAT_PARTS);
}

/* Counts what an ID does in all parts but `without`; also sets usual->seen and what repeats. */
static void count_id(const kdgat_recording *recording, uint32_t without, uint32_t id, kdgat_counts *counts, kdgat_usual *usual)
{
    uint32_t part, window = 0, first = 0;
    frames_until until = {NULL, 0, 0};

    until.frames = recording->frames;
    memset(counts, 0, sizeof *counts);
    for (part = 0; part < KDGAT_PARTS; part++) {
        sums_of_part sums = {0.0, 0.0};
        for (; window < begin_of(recording, part + 1u); first += kdgat_step(recording, window), window++) {
            until.begin = kdgat_begins_log(recording, window) ? first : until.begin;
            for (until.end = first; part != without && until.end < first + KDGAT_WINDOW; until.end++) {
                if (recording->frames[until.end].id == id) {
                    add_frame(counts, &until, &recording->facts[until.end], usual, &sums);
                }
            }
        }
        counts->gap_sum += sums.gaps;
        counts->watched += sums.watched;
    }
}

/* Longest silence of an ID up to the end of a window, in seconds without pauses, if it is longer than `least`, else `least`: a log may end before
 * the ID is back. */
static float longest_silence(const kdgat_recording *recording, uint32_t id, float least)
{
    uint32_t window, first = 0, seen = 0, frames = 0;
    double latest = 0.0;
    float longest = least;
    frames_until until = {NULL, 0, 0};

    until.frames = recording->frames;
    for (window = 0; window < recording->windows; first += kdgat_step(recording, window), window++) {
        if (kdgat_begins_log(recording, window)) {
            seen = first;
            until.begin = first;
            frames = 0;
        }
        for (; seen < first + KDGAT_WINDOW; seen++) {
            if (recording->frames[seen].id == id) {
                latest = recording->frames[seen].time;
                frames++;
            }
        }
        if (frames >= KDGAT_FEWEST_FRAMES) {
            const double silence = recording->frames[first + KDGAT_WINDOW - 1u].time - latest;
            float found = (float)(silence < KDGAT_LONGEST_GAP ? silence : KDGAT_LONGEST_GAP);
            if (found > longest) {
                /* Pauses only shorten it. */
                until.end = first + KDGAT_WINDOW - 1u;
                found = without_pauses(&until, found);
                longest = found > longest ? found : longest;
            }
        }
    }
    return longest;
}

/* Sets the longest silence: the longest gap, or a longer silence that would be called the ID's end, and was not. */
static void set_silence(const kdgat_recording *recording, const kdgat_counts *counts, kdgat_usual *usual)
{
    const float limit = kdgat_gone_seconds(usual);
    if (limit < INFINITY) {
        const float silence = longest_silence(recording, usual->id, limit);
        usual->longest_silence = silence > limit ? silence : counts->longest_gap;
    }
}

/* Sets what is usual for an ID from its counts; `seen` is set already. */
static void set_usual(const kdgat_counts *counts, kdgat_usual *usual)
{
    uint32_t byte, change;

    usual->gaps = (float)counts->pairs;
    usual->gap_low = gap_of(counts, 0.001);
    usual->gap_median = gap_of(counts, 0.5);
    usual->gap_mean = counts->pairs == 0u ? 0.0f : (float)(counts->gap_sum / (double)counts->pairs);
    usual->gap_high = gap_of(counts, 0.999);
    usual->watched = (float)counts->watched;
    usual->longest_silence = counts->longest_gap;
    usual->repeats = of_pairs(counts, counts->repeats);
    usual->returns = of_pairs(counts, counts->returns);
    usual->changed_bytes = of_pairs(counts, counts->changed_bytes);
    for (byte = 0; byte < KDGAT_PROFILE_BYTES; byte++) {
        const uint32_t high = quantile_of(counts->changes[byte], 256u, 0.9999);
        usual->change_high[byte] = (uint8_t)(high < 256u ? high : 0u);
        usual->change_most[byte] = 0;
        for (change = 0; change < 256u; change++) {
            if (counts->changes[byte][change] > 0u) {
                usual->change_most[byte] = (uint8_t)change;
            }
        }
    }
}

/* Adds an ID to car->usual unless it has it; returns 0 if there is no room. */
static int add_id(kdgat_calibration_state *car, uint32_t id)
{
    uint32_t low = 0, high = car->num_usual;
    while (low < high) {
        const uint32_t middle = (low + high) / 2u;
        if (car->usual[middle].id < id) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    if (low < car->num_usual && car->usual[low].id == id) {
        return 1;
    }
    if (car->num_usual == KDGAT_CALIBRATION_IDS) {
        return 0;
    }
    memmove(&car->usual[low + 1u], &car->usual[low], (car->num_usual - low) * sizeof car->usual[0]);
    memset(&car->usual[low], 0, sizeof car->usual[low]);
    car->usual[low].id = id;
    car->num_usual++;
    return 1;
}

int kdgat_learn(const kdgat_recording *recording, uint32_t without, kdgat_counts *counts, kdgat_calibration_state *car)
{
    uint32_t window, first = 0, at, once = 0, frames = 0;

    car->num_usual = 0;
    for (window = 0; window < recording->windows; first += kdgat_step(recording, window), window++) {
        for (at = first; at < first + KDGAT_WINDOW; at++) {
            if (!add_id(car, recording->frames[at].id)) {
                return 0;
            }
        }
    }
    for (at = 0; at < car->num_usual; at++) {
        count_id(recording, without, car->usual[at].id, counts, &car->usual[at]);
        if (counts->frames == 0u) {
            /* Only that part has it. */
            count_id(recording, KDGAT_PARTS, car->usual[at].id, counts, &car->usual[at]);
        }
        set_usual(counts, &car->usual[at]);
        /* Whether an ID is gone is asked of the car's profile alone. */
        if (without == KDGAT_PARTS) {
            set_silence(recording, counts, &car->usual[at]);
        }
        once += counts->frames == 1u ? 1u : 0u;
        frames += counts->frames;
    }
    car->new_id_surprise = -logf((float)(once + 1u) / (float)(frames + 2u));
    return 1;
}

#endif

/* Makes a calibration from the windows of attack-free traffic.
 *
 * Windows in consecutive fifths are each judged by the other four, because under what was made from it a window looks too usual. */
#include "kdgat_calibrate.h"

#include <math.h>
#include <string.h>

#if KDGAT_MODEL == KDGAT_MODEL_VGAE || KDGAT_ID_LIST

#define PARTS 5u

/* One part of the windows: own to own_end - 1. Windows before `before` and from `after` on share no frame with it. */
typedef struct {
    uint32_t own;
    uint32_t own_end;
    uint32_t before;
    uint32_t after;
} kdgat_part;

static kdgat_part part_of(uint32_t windows, uint32_t number)
{
    kdgat_part part;
    uint32_t gap = KDGAT_WINDOW / KDGAT_STRIDE;
    gap = gap < windows / (2u * PARTS) ? gap : windows / (2u * PARTS);
    part.own = number * windows / PARTS;
    part.own_end = (number + 1u) * windows / PARTS;
    part.before = part.own > gap ? part.own - gap : 0u;
    part.after = part.own_end + gap < windows ? part.own_end + gap : windows;
    return part;
}

#endif

/* Moves values[root] down the heap of `count` values. */
static void sift(double *values, uint32_t root, uint32_t count)
{
    const double value = values[root];
    uint32_t child;
    while ((child = 2u * root + 1u) < count) {
        if (child + 1u < count && values[child + 1u] > values[child]) {
            child++;
        }
        if (values[child] <= value) {
            break;
        }
        values[root] = values[child];
        root = child;
    }
    values[root] = value;
}

/* Sorts values in ascending order (heapsort: no recursion, no more memory). */
static void sort(double *values, uint32_t count)
{
    uint32_t end;
    for (end = count / 2u; end > 0u; end--) {
        sift(values, end - 1u, count);
    }
    for (end = count; end > 1u; end--) {
        const double largest = values[0];
        values[0] = values[end - 1u];
        values[end - 1u] = largest;
        sift(values, 0u, end - 1u);
    }
}

/* Quantile of ascending values, with linear interpolation. */
static double quantile(const double *values, uint32_t count, double share)
{
    const double place = share * (double)(count - 1u);
    const uint32_t below = (uint32_t)place, above = below + 1u < count ? below + 1u : count - 1u;
    return values[below] + (place - (double)below) * (values[above] - values[below]);
}

static double apart(const double *values, uint32_t count, double low)
{
    return quantile(values, count, 1.0 - low) - quantile(values, count, low);
}

/* Median and spread of ascending values: the interquartile range, or a wider one if half of the windows have the same value. */
static void fit_scale(kdgat_calibration_state *car, const double *values, uint32_t count)
{
    car->median = quantile(values, count, 0.5);
    car->spread = apart(values, count, 0.25) / 1.3489795003921634;
    if (!(car->spread > 0.0)) {
        car->spread = apart(values, count, 0.05) / 3.29;
    }
    if (!(car->spread > 0.0)) {
        car->spread = (values[count - 1u] - values[0]) / 6.0;
    }
    if (!(car->spread > 0.0)) {
        car->spread = 1.0;
    }
}

/* Moves a score four units in the last place up, as the trainer does. */
static double guarded(double score)
{
    uint64_t bits;
    if (score == 0.0) {
        return score;
    }
    memcpy(&bits, &score, sizeof bits);
    bits = score > 0.0 ? bits + 4u : bits - (bits < 4u ? bits : 4u);
    memcpy(&score, &bits, sizeof score);
    return score;
}

/* Place in ascending values of the smallest one that at most a share KDGAT_CALIBRATION_RATE of them exceeds. */
static uint32_t place_at_rate(uint32_t count)
{
    const uint32_t exceeding = (uint32_t)(KDGAT_CALIBRATION_RATE * (double)count);
    return exceeding < count ? count - 1u - exceeding : 0u;
}

#if KDGAT_MODEL == KDGAT_MODEL_VGAE

/* Cholesky factor of a packed symmetric matrix, in place; returns 0 if the matrix is not positive definite. */
static int factorise(double *matrix)
{
    double *row = matrix;
    uint32_t r, c, k;
    for (r = 0; r < KDGAT_PROFILE_VALUES; row += ++r) {
        const double *above = matrix;
        double rest;
        for (c = 0; c < r; above += ++c) {
            double known = 0.0;
            for (k = 0; k < c; k++) {
                known += row[k] * above[k];
            }
            row[c] = (row[c] - known) / above[c];
        }
        rest = 0.0;
        for (c = 0; c < r; c++) {
            rest += row[c] * row[c];
        }
        rest = row[r] - rest;
        if (!(rest > 0.0) || rest - rest != 0.0) {
            return 0;
        }
        row[r] = sqrt(rest);
    }
    return 1;
}

/* Fits mean and covariance to the windows before `before` and from `after` on. Few windows say little about covariances, so those of
 * different values are shrunk. Returns 0 if the windows do not define them. */
static int fit_errors(kdgat_calibration *work, uint32_t before, uint32_t after)
{
    const double windows = (double)(before + work->windows - after), values = (double)KDGAT_PROFILE_VALUES;
    const double shrink = 1.0 - sqrt(values / (windows + values));
    double *const mean = work->car.mean, *const matrix = work->car.factor, *entry;
    uint32_t w, r, c;

    for (r = 0; r < KDGAT_PROFILE_VALUES; r++) {
        mean[r] = 0.0;
    }
    for (w = 0; w < KDGAT_FACTOR_VALUES; w++) {
        matrix[w] = 0.0;
    }
    for (w = before > 0u ? 0u : after; w < work->windows; w = w + 1u == before ? after : w + 1u) {
        for (r = 0; r < KDGAT_PROFILE_VALUES; r++) {
            mean[r] += kdgat_profile_value(work->errors[w], r);
        }
    }
    for (r = 0; r < KDGAT_PROFILE_VALUES; r++) {
        mean[r] /= windows;
    }
    for (w = before > 0u ? 0u : after; w < work->windows; w = w + 1u == before ? after : w + 1u) {
        entry = matrix;
        for (r = 0; r < KDGAT_PROFILE_VALUES; r++) {
            work->centred[r] = kdgat_profile_value(work->errors[w], r) - mean[r];
            for (c = 0; c <= r; c++) {
                *entry++ += work->centred[r] * work->centred[c];
            }
        }
    }
    entry = matrix;
    for (r = 0; r < KDGAT_PROFILE_VALUES; r++) {
        for (c = 0; c <= r; c++, entry++) {
            *entry /= windows > 2.0 ? windows - 1.0 : 1.0;
            *entry = r == c ? *entry * (1.0 + 1e-6) + 1e-12 : *entry * shrink;
        }
    }
    return factorise(matrix);
}

static kdgat_status fit(kdgat_calibration *work)
{
    const uint32_t windows = work->windows;
    uint32_t number, w;

    for (number = 0; number < PARTS; number++) {
        const kdgat_part part = part_of(windows, number);
        if (!fit_errors(work, part.before, part.after)) {
            return KDGAT_NOT_FINITE;
        }
        for (w = part.own; w < part.own_end; w++) {
            work->values[w] = kdgat_log_distance(kdgat_distance(work->car.mean, work->car.factor, work->errors[w]));
        }
    }
    if (!fit_errors(work, windows, windows)) {
        return KDGAT_NOT_FINITE;
    }
    sort(work->values, windows);
    return KDGAT_OK;
}

#else

/* Sorts the windows' log odds, with the evidence of windows that have an ID that the others lack if `evidence` is above 0. */
static void sort_values(kdgat_calibration *work, double evidence)
{
    uint32_t w;
    for (w = 0; w < work->windows; w++) {
        work->values[w] = (double)work->raw[w];
#if KDGAT_ID_LIST
        work->values[w] += work->foreign[w] ? evidence : 0.0;
#else
        (void)evidence;
#endif
    }
    sort(work->values, work->windows);
}

#if KDGAT_ID_LIST

/* Sets foreign[w] for windows with an ID that windows of other parts lack; returns their number. */
static uint32_t find_foreign(kdgat_calibration *work)
{
    uint32_t number, w, id, foreign = 0;
    for (number = 0; number < PARTS; number++) {
        const kdgat_part part = part_of(work->windows, number);
        for (w = part.own; w < part.own_end; w++) {
            work->foreign[w] = 0;
            for (id = 0; id < work->car.num_ids; id++) {
                const int has_id = work->has_id[w][id / 8u] >> (id % 8u) & 1;
                if (has_id && work->first[id] >= part.before && work->last[id] < part.after) {
                    work->foreign[w] = 1;
                }
            }
            foreign += work->foreign[w];
        }
    }
    return foreign;
}

/* Sorts the car's IDs (insertion sort: they are few). */
static void sort_ids(kdgat_calibration_state *car)
{
    uint32_t at, place;
    for (at = 1; at < car->num_ids; at++) {
        const uint32_t id = car->ids[at];
        for (place = at; place > 0u && car->ids[place - 1u] > id; place--) {
            car->ids[place] = car->ids[place - 1u];
        }
        car->ids[place] = id;
    }
}

#endif

static kdgat_status fit(kdgat_calibration *work)
{
#if KDGAT_ID_LIST
    const uint32_t windows = work->windows;
    const double of_normals = ((double)find_foreign(work) + 0.5) / ((double)windows + 1.0);
    double evidence = log(KDGAT_FOREIGN_OF_ATTACKS / of_normals);

    evidence = evidence > 0.0 && !work->overflows ? evidence : 0.0;
    sort_values(work, evidence);
    /* If so many windows have such IDs that one more would not push a usual window over the threshold, they are ignored: they would
     * only raise it for other attacks. */
    if (!(quantile(work->values, windows, 0.5) + evidence > guarded(work->values[place_at_rate(windows)]))) {
        evidence = 0.0;
        sort_values(work, evidence);
    }
    work->car.evidence = evidence;
    sort_ids(&work->car);
#else
    sort_values(work, 0.0);
#endif
    return KDGAT_OK;
}

#endif

void kdgat_calibrate_begin(kdgat_state *state, kdgat_calibration *work)
{
    memset(work, 0, sizeof *work);
    memset(&state->window, 0, sizeof state->window);
}

#if KDGAT_ID_LIST

/* Notes that the window has this ID. */
static void add_id(kdgat_calibration *work, uint32_t id)
{
    uint32_t at = 0;
    while (at < work->car.num_ids && work->car.ids[at] != id) {
        at++;
    }
    if (at == KDGAT_CALIBRATION_IDS) {
        work->overflows = 1;
        return;
    }
    if (at == work->car.num_ids) {
        work->car.ids[at] = id;
        work->first[at] = work->windows;
        work->car.num_ids++;
    }
    work->last[at] = work->windows;
    work->has_id[work->windows][at / 8u] |= (uint8_t)(1u << (at % 8u));
}

#endif

/* Scores the window whose graph is in the state, and adds it. */
static void add_window(kdgat_state *state, kdgat_calibration *work)
{
#if KDGAT_MODEL == KDGAT_MODEL_VGAE || KDGAT_ID_LIST
    uint32_t i;
#endif

    kdgat_model_score(&state->graph, &state->scratch, &state->output);
#if KDGAT_MODEL == KDGAT_MODEL_VGAE
    for (i = 0; i < KDGAT_PROFILE_VALUES; i++) {
        work->errors[work->windows][i] = state->output.error_means[i];
    }
#else
    work->raw[work->windows] = state->output.raw;
#if KDGAT_ID_LIST
    for (i = 0; i < state->graph.num_nodes; i++) {
        if (state->graph.sends[i]) {
            add_id(work, state->graph.can_id[i]);
        }
    }
#endif
#endif
    work->windows++;
}

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

/* Windows of the log that is read. */
static uint32_t windows_of_log(const kdgat_calibration *work)
{
    const uint32_t frames = work->num_frames - work->log_begin;
    return frames < KDGAT_WINDOW_FRAMES ? 0u : (frames - KDGAT_WINDOW_FRAMES) / KDGAT_STRIDE + 1u;
}

void kdgat_calibrate_next_log(kdgat_state *state, kdgat_calibration *work)
{
    const uint32_t windows = windows_of_log(work);
    /* Frames after the last window of a log are not needed. */
    work->num_frames = work->log_begin + (windows > 0u ? KDGAT_FRAMES_OF(windows) : 0u);
    work->log_begin = work->num_frames;
    work->log_windows += windows;
    if (work->log_windows > 0u) {
        uint8_t *const byte = &work->begins_log[work->log_windows / 8u];
        *byte = (uint8_t)(*byte | 1u << (work->log_windows % 8u));
    }
    memset(&state->window, 0, sizeof state->window);
}

kdgat_status kdgat_calibrate_push(kdgat_state *state, kdgat_calibration *work, const kdgat_frame *frame)
{
    const uint32_t at = work->num_frames;
    /* The last window may have come, and there may be no room for frames between windows. */
    if (at == KDGAT_FRAMES_OF(KDGAT_CALIBRATION_WINDOWS) || work->log_windows + windows_of_log(work) >= KDGAT_CALIBRATION_WINDOWS) {
        return KDGAT_FULL;
    }
    kdgat_window_copy(&state->window, frame, &work->frames[at]);
    kdgat_observe(&state->window.history, &work->frames[at], &work->facts[at]);
    work->num_frames++;
    return KDGAT_OK;
}

/* Number of windows that exceed a threshold of KDGAT_CALIBRATION_RATE at most, but for one case in a hundred: the 99 % quantile of a Poisson
 * distribution, or of a normal one from 100 expected windows. */
static uint32_t exceeding_by_chance(uint32_t windows)
{
    const double expected = KDGAT_CALIBRATION_RATE * (double)windows;
    double probability = exp(-expected), sum = probability;
    uint32_t count = 0;
    if (expected > 100.0) {
        return (uint32_t)ceil(expected + 2.3263478740408408 * sqrt(expected));
    }
    while (sum < 0.99) {
        count++;
        probability *= expected / (double)count;
        sum += probability;
    }
    return count;
}

/* Makes the windows of one part under the profile of the others, and scores them, or only counts those with unusual bytes. */
static int each_of_part(kdgat_state *state, kdgat_calibration *work, const kdgat_recording *recording, uint32_t part, int scores,
                        uint32_t *unusual)
{
    const uint32_t begin = (uint32_t)((uint64_t)recording->windows * part / KDGAT_PARTS);
    const uint32_t end = (uint32_t)((uint64_t)recording->windows * (part + 1u) / KDGAT_PARTS);
    uint32_t at, next = 0, first = 0; /* the next window that begins, and its first frame */
    if (!kdgat_learn(recording, part, &work->counts, &work->car)) {
        return 0;
    }
    memset(&state->window, 0, sizeof state->window);
    for (at = 0; at < work->num_frames && state->window.windows < end; at++) {
        if (at == first) {
            if (kdgat_begins_log(recording, next)) {
                const uint64_t windows = state->window.windows;
                memset(&state->window, 0, sizeof state->window);
                state->window.windows = windows;
            }
            first += kdgat_step(recording, next++);
        }
        if (kdgat_window_add(&state->window, &work->car, &work->frames[at], &state->graph) && state->window.windows > begin) {
            *unusual += state->graph.unusual_bytes;
            if (scores) {
                add_window(state, work);
            }
        }
    }
    return 1;
}

/* Learns the car's profile, and scores each window with the profile of the other parts, because under a profile that was learned from it a
 * window looks too usual. */
static kdgat_status score_windows(kdgat_state *state, kdgat_calibration *work)
{
    kdgat_recording recording;
    uint32_t part, unusual = 0;
    int scores;

    recording.frames = work->frames;
    recording.facts = work->facts;
    recording.begins_log = work->begins_log;
    recording.windows = work->log_windows + windows_of_log(work);
    if (recording.windows < KDGAT_FEWEST_WINDOWS) {
        return KDGAT_TOO_FEW;
    }
    work->car.calibrated = 1;
    work->car.counts_bytes = 1;
    /* First a count: a classifier judges without bytes while these still do what they had not done before. */
    for (scores = KDGAT_MODEL == KDGAT_MODEL_VGAE; scores < 2; scores++) {
        for (part = 0; part < KDGAT_PARTS; part++) {
            if (!each_of_part(state, work, &recording, part, scores, &unusual)) {
                return KDGAT_MANY_IDS;
            }
        }
        if (!scores) {
            work->car.counts_bytes = unusual <= exceeding_by_chance(recording.windows);
        }
    }
    return kdgat_learn(&recording, KDGAT_PARTS, &work->counts, &work->car) ? KDGAT_OK : KDGAT_MANY_IDS;
}

/* Replaces the threshold by the model's own, seen with as little traffic, unless significantly more of the windows exceed it than the rate
 * asks for. `values` ascend. */
static void keep_threshold(kdgat_calibration_state *car, const double *values, uint32_t windows)
{
    double value = 0.0, least; /* without bytes, even odds */
    uint32_t exceeding = 0;
#ifdef KDGAT_LEAST_SCORE
    if (KDGAT_MODEL == KDGAT_MODEL_VGAE) {
        value = kdgat_log_distance(KDGAT_LEAST_SCORE);
    } else if (car->counts_bytes) {
        value = log(KDGAT_LEAST_SCORE) - log(1.0 - KDGAT_LEAST_SCORE);
    }
#else
    if (car->counts_bytes) {
        return;
    }
#endif
    least = (value - car->median) / car->spread;
    while (exceeding < windows && (values[windows - 1u - exceeding] - car->median) / car->spread > least) {
        exceeding++;
    }
    car->threshold = exceeding <= exceeding_by_chance(windows) ? least : car->threshold;
}

#else

void kdgat_calibrate_next_log(kdgat_state *state, kdgat_calibration *work)
{
    (void)work;
    memset(&state->window, 0, sizeof state->window);
}

kdgat_status kdgat_calibrate_push(kdgat_state *state, kdgat_calibration *work, const kdgat_frame *frame)
{
    if (work->windows >= KDGAT_CALIBRATION_WINDOWS) {
        return KDGAT_FULL;
    }
    if (kdgat_window_push(state, frame)) {
        add_window(state, work);
    }
    return KDGAT_OK;
}

#endif

kdgat_status kdgat_calibrate_end(kdgat_state *state, kdgat_calibration *work)
{
    kdgat_calibration_state *const car = &work->car;
    kdgat_status status = KDGAT_OK;
    uint32_t windows;

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    status = work->windows == 0u ? score_windows(state, work) : KDGAT_TOO_FEW;
#endif
    windows = work->windows;
    memset(&state->window, 0, sizeof state->window);
    if (status != KDGAT_OK) {
        return status;
    }
    if (windows < KDGAT_FEWEST_WINDOWS || windows > KDGAT_CALIBRATION_WINDOWS) {
        return KDGAT_TOO_FEW;
    }
    status = fit(work);
    if (status != KDGAT_OK) {
        return status;
    }
    fit_scale(car, work->values, windows);
    car->threshold = guarded((work->values[place_at_rate(windows)] - car->median) / car->spread);
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    keep_threshold(car, work->values, windows);
#endif
    if (car->median - car->median != 0.0 || car->spread - car->spread != 0.0 || car->threshold - car->threshold != 0.0) {
        return KDGAT_NOT_FINITE;
    }
    car->calibrated = 1;
    state->calibration = *car;
    kdgat_forget_gone(state);
    return KDGAT_OK;
}

void kdgat_calibrate_none(kdgat_state *state)
{
    memset(&state->calibration, 0, sizeof state->calibration);
    kdgat_forget_gone(state);
}

#include "alarm.h"

#include <math.h>
#include <string.h>

double alarm_clock_advance(alarm_clock *clock, double time)
{
    if (isfinite(time)) {
        double step = clock->has_last ? time - clock->last : 0.0;
        if (step > ALARM_LONGEST_STEP_SECONDS) {
            step = ALARM_LONGEST_STEP_SECONDS;
        }
        if (step > 0.0) {
            clock->seconds += step;
        }
        clock->last = time;
        clock->has_last = 1;
    }
    return clock->seconds;
}

void alarm_init(alarm_state *state, const alarm_rule *rule)
{
    memset(state, 0, sizeof *state);
    state->rule = *rule;
    if (state->rule.among < 1u) {
        state->rule.among = 1u;
    }
    if (state->rule.among > ALARM_MOST_AMONG) {
        state->rule.among = ALARM_MOST_AMONG;
    }
    if (state->rule.needed < 1u) {
        state->rule.needed = 1u;
    }
    if (state->rule.clear < 1u) {
        state->rule.clear = 1u;
    }
    state->state = ALARM_STATE_QUIET;
    state->last_time = NAN;
}

/* Adds an attack window; the first one of a merge finds zeros. */
static void merge(alarm_merged *merged, const alarm_verdict *verdict)
{
    uint8_t named;
    merged->score = merged->attack_windows == 0u ? verdict->score : fmax(merged->score, verdict->score);
    merged->deviations = merged->attack_windows == 0u ? verdict->deviations : fmax(merged->deviations, verdict->deviations);
    merged->attack_windows++;
    if (verdict->severity > merged->severity) {
        merged->severity = verdict->severity;
    }
    for (named = 0; named < verdict->num_ids && named < ALARM_MOST_NAMED; named++) {
        uint32_t position = 0;
        while (position < merged->num_tracked && merged->tracked[position].id != verdict->id[named]) {
            position++;
        }
        if (position < merged->num_tracked) {
            merged->tracked[position].windows++;
        } else if (merged->num_tracked < ALARM_MOST_TRACKED) {
            merged->tracked[position].id = verdict->id[named];
            merged->tracked[position].windows = 1;
            merged->num_tracked++;
        }
    }
}

/* Merges the recent attacks from a position on. */
static void merge_recent(const alarm_state *state, uint32_t position, alarm_merged *merged)
{
    memset(merged, 0, sizeof *merged);
    for (; position < state->num_recent; position++) {
        merge(merged, &state->recent[position].verdict);
    }
}

/* Position of the first attack among the last windows. */
static uint32_t first_among(const alarm_state *state, uint32_t among)
{
    uint32_t position = 0;
    while (position < state->num_recent && state->recent[position].position + among <= state->windows) {
        position++;
    }
    return position;
}

/* Lists the IDs named by most windows, ties in the order in which they were first named. */
static void list_culprits(const alarm_merged *merged, alarm_event *event)
{
    uint8_t taken[ALARM_MOST_TRACKED] = {0};
    event->num_culprits = 0;
    while (event->num_culprits < ALARM_MOST_LISTED && event->num_culprits < merged->num_tracked) {
        uint32_t position, most = ALARM_MOST_TRACKED;
        for (position = 0; position < merged->num_tracked; position++) {
            if (!taken[position] &&
                (most == ALARM_MOST_TRACKED || merged->tracked[position].windows > merged->tracked[most].windows)) {
                most = position;
            }
        }
        taken[most] = 1;
        event->culprit[event->num_culprits++] = merged->tracked[most];
    }
}

static int is_told(const alarm_state *state, uint32_t id)
{
    uint32_t position;
    for (position = 0; position < state->num_told; position++) {
        if (state->told[position] == id) {
            return 1;
        }
    }
    return 0;
}

static void tell(alarm_state *state, uint32_t id)
{
    if (state->num_told < ALARM_MOST_TRACKED && !is_told(state, id)) {
        state->told[state->num_told++] = id;
    }
}

/* True if enough recent attacks name the ID. */
static int is_agreed(const alarm_state *state, uint32_t id)
{
    uint32_t position, count = 0;
    for (position = 0; position < state->num_recent; position++) {
        const alarm_verdict *verdict = &state->recent[position].verdict;
        uint8_t named = 0;
        while (named < verdict->num_ids && named < ALARM_MOST_NAMED && verdict->id[named] != id) {
            named++;
        }
        count += named < verdict->num_ids && named < ALARM_MOST_NAMED ? 1u : 0u;
    }
    return count >= state->rule.needed && count >= ALARM_CULPRITS_NEEDED;
}

/* Calls tell for each ID that enough recent attacks agree on, or only finds one that was not told. */
static int agreed_ids(alarm_state *state, int tells)
{
    uint32_t position;
    uint8_t named;
    for (position = 0; position < state->num_recent; position++) {
        const alarm_verdict *verdict = &state->recent[position].verdict;
        for (named = 0; named < verdict->num_ids && named < ALARM_MOST_NAMED; named++) {
            const uint32_t id = verdict->id[named];
            if (is_told(state, id) || !is_agreed(state, id)) {
                continue;
            }
            if (!tells) {
                return 1;
            }
            tell(state, id);
        }
    }
    return 0;
}

/* What recent attacks agree on and the events of the last alarm have not said. */
static alarm_news news(alarm_state *state)
{
    uint32_t position, severe = 0;
    if (state->num_recent > 0u && state->recent[state->num_recent - 1u].verdict.num_gone > 0u) {
        return ALARM_NEW_GONE;
    }
    for (position = first_among(state, state->rule.among); position < state->num_recent; position++) {
        severe += state->recent[position].verdict.severity > state->told_severity ? 1u : 0u;
    }
    if (severe >= state->rule.needed) {
        return ALARM_NEW_SEVERITY;
    }
    return state->num_told < ALARM_MOST_TRACKED && agreed_ids(state, 0) ? ALARM_NEW_CULPRITS : ALARM_NO_NEWS;
}

/* Figures of the window that raises or changes an alarm. */
static void of_last_window(const alarm_state *state, alarm_event *event)
{
    const alarm_verdict *last = &state->recent[state->num_recent - 1u].verdict;
    event->alarm = state->raised;
    event->time = last->time;
    event->window = last->window;
    event->score = last->score;
    event->deviations = last->deviations;
    event->attack_windows = state->episode.attack_windows;
    event->severity = state->episode.severity;
    event->num_gone = last->num_gone;
    memcpy(event->gone, last->gone, sizeof event->gone);
}

static void raise_alarm(alarm_state *state, alarm_event *event)
{
    const uint32_t first = first_among(state, state->rule.among);
    uint32_t position;
    state->first_position = state->recent[first].position;
    state->first_clock = state->recent[first].clock;
    merge_recent(state, first, &state->episode);
    state->raised++;
    state->told_severity = state->episode.severity;
    state->num_told = 0;
    for (position = 0; position < state->episode.num_tracked; position++) {
        tell(state, state->episode.tracked[position].id);
    }
    event->kind = ALARM_BEGIN;
    event->since = state->recent[first].verdict.time;
    event->suppressed = state->suppressed - state->suppressed_before;
    state->suppressed_before = state->suppressed;
    of_last_window(state, event);
    list_culprits(&state->episode, event);
    state->quiet = 0;
    state->state = ALARM_STATE_OPEN;
}

/* Reports news in an open episode. */
static void change_alarm(alarm_state *state, alarm_event *event)
{
    const alarm_news found = news(state);
    alarm_merged recent;
    uint8_t at;
    if (found == ALARM_NO_NEWS) {
        return;
    }
    event->kind = ALARM_CHANGE;
    event->news = found;
    of_last_window(state, event);
    merge_recent(state, 0, &recent);
    list_culprits(&recent, event);
    (void)agreed_ids(state, 1);
    for (at = 0; at < event->num_gone; at++) {
        tell(state, event->gone[at]);
    }
    state->told_severity = state->episode.severity;
}

static void end_alarm(alarm_state *state, uint8_t cleared, alarm_event *event)
{
    uint32_t position;
    event->kind = ALARM_END;
    event->alarm = state->raised;
    event->time = state->last_time;
    event->duration_seconds = state->clock.seconds - state->first_clock;
    event->windows = state->windows + 1u - state->first_position;
    event->attack_windows = state->episode.attack_windows;
    event->score = state->episode.score;
    event->deviations = state->episode.deviations;
    event->severity = state->episode.severity;
    event->cleared = cleared;
    list_culprits(&state->episode, event);
    state->told_severity = state->episode.severity;
    for (position = 0; position < event->num_culprits; position++) {
        tell(state, event->culprit[position].id);
    }
    state->num_recent = 0;
    state->has_ended = 1;
    state->ended_at = state->clock.seconds;
    state->state = ALARM_STATE_QUIET;
}

static void attack(alarm_state *state, double clock, const alarm_verdict *verdict, alarm_event *event)
{
    const uint32_t among = state->rule.among > ALARM_CULPRITS_AMONG ? state->rule.among : ALARM_CULPRITS_AMONG;
    const uint32_t old = first_among(state, among);
    int enough, cooling;
    state->num_recent -= old;
    memmove(state->recent, state->recent + old, state->num_recent * sizeof *state->recent);
    if (state->num_recent == ALARM_MOST_AMONG) {
        /* Cannot happen: among so many windows, there are at most so many attacks. */
        return;
    }
    state->recent[state->num_recent].position = state->windows;
    state->recent[state->num_recent].clock = clock;
    state->recent[state->num_recent].verdict = *verdict;
    state->num_recent++;
    if (state->state == ALARM_STATE_OPEN) {
        state->quiet = 0;
        merge(&state->episode, verdict);
        change_alarm(state, event);
        return;
    }
    if (verdict->num_gone > 0u) {
        raise_alarm(state, event);
        return;
    }
    enough = state->num_recent - first_among(state, state->rule.among) >= state->rule.needed;
    cooling = state->has_ended && clock - state->ended_at < state->rule.cooldown_seconds;
    if (enough && (!cooling || news(state) != ALARM_NO_NEWS)) {
        raise_alarm(state, event);
    } else if (enough || state->state == ALARM_STATE_SUPPRESSED) {
        state->state = ALARM_STATE_SUPPRESSED;
        state->quiet = 0;
    }
}

void alarm_push(alarm_state *state, const alarm_verdict *verdict, alarm_event *event)
{
    double clock;
    memset(event, 0, sizeof *event);
    state->windows++;
    state->last_time = verdict->time;
    clock = alarm_clock_advance(&state->clock, verdict->time);
    if (verdict->attack) {
        attack(state, clock, verdict, event);
    } else if (state->state == ALARM_STATE_OPEN) {
        if (++state->quiet >= state->rule.clear) {
            end_alarm(state, 1, event);
        }
    } else if (state->state == ALARM_STATE_SUPPRESSED && ++state->quiet >= state->rule.clear) {
        state->suppressed++;
        state->num_recent = 0;
        state->state = ALARM_STATE_QUIET;
    }
}

void alarm_finish(alarm_state *state, alarm_event *event)
{
    memset(event, 0, sizeof *event);
    if (state->state == ALARM_STATE_OPEN) {
        end_alarm(state, 0, event);
    } else if (state->state == ALARM_STATE_SUPPRESSED) {
        state->suppressed++;
        state->state = ALARM_STATE_QUIET;
    }
}

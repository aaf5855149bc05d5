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

/* Adds an attack window to the open episode. */
static void merge(alarm_state *state, const alarm_verdict *verdict)
{
    uint8_t named;
    state->attack_windows++;
    state->score = fmax(state->score, verdict->score);
    state->deviations = fmax(state->deviations, verdict->deviations);
    if (verdict->severity > state->severity) {
        state->severity = verdict->severity;
    }
    for (named = 0; named < verdict->num_ids && named < ALARM_MOST_NAMED; named++) {
        uint32_t position = 0;
        while (position < state->num_tracked && state->tracked[position].id != verdict->id[named]) {
            position++;
        }
        if (position < state->num_tracked) {
            state->tracked[position].windows++;
        } else if (state->num_tracked < ALARM_MOST_TRACKED) {
            state->tracked[position].id = verdict->id[named];
            state->tracked[position].windows = 1;
            state->num_tracked++;
        }
    }
}

/* Lists the IDs named by most windows, ties in the order in which they were first named. */
static void list_culprits(const alarm_state *state, alarm_event *event)
{
    uint8_t taken[ALARM_MOST_TRACKED] = {0};
    event->num_culprits = 0;
    while (event->num_culprits < ALARM_MOST_LISTED && event->num_culprits < state->num_tracked) {
        uint32_t position, most = ALARM_MOST_TRACKED;
        for (position = 0; position < state->num_tracked; position++) {
            if (!taken[position] &&
                (most == ALARM_MOST_TRACKED || state->tracked[position].windows > state->tracked[most].windows)) {
                most = position;
            }
        }
        taken[most] = 1;
        event->culprit[event->num_culprits++] = state->tracked[most];
    }
}

static void raise_alarm(alarm_state *state, alarm_event *event)
{
    const alarm_verdict *last = &state->recent[state->num_recent - 1u].verdict;
    uint32_t position;
    state->first_position = state->recent[0].position;
    state->first_clock = state->recent[0].clock;
    state->attack_windows = 0;
    state->score = NAN;
    state->deviations = NAN;
    state->severity = ALARM_LOW;
    state->num_tracked = 0;
    for (position = 0; position < state->num_recent; position++) {
        merge(state, &state->recent[position].verdict);
    }
    state->raised++;
    event->kind = ALARM_BEGIN;
    event->alarm = state->raised;
    event->time = last->time;
    event->since = state->recent[0].verdict.time;
    event->window = last->window;
    event->score = last->score;
    event->deviations = last->deviations;
    event->attack_windows = state->attack_windows;
    event->severity = state->severity;
    list_culprits(state, event);
    state->num_recent = 0;
    state->quiet = 0;
    state->state = ALARM_STATE_OPEN;
}

static void end_alarm(alarm_state *state, uint8_t cleared, alarm_event *event)
{
    event->kind = ALARM_END;
    event->alarm = state->raised;
    event->time = state->last_time;
    event->duration_seconds = state->clock.seconds - state->first_clock;
    event->windows = state->windows + 1u - state->first_position;
    event->attack_windows = state->attack_windows;
    event->score = state->score;
    event->deviations = state->deviations;
    event->severity = state->severity;
    event->cleared = cleared;
    list_culprits(state, event);
    state->has_ended = 1;
    state->ended_at = state->clock.seconds;
    state->state = ALARM_STATE_QUIET;
}

/* An attack window outside an episode. */
static void attack(alarm_state *state, double clock, const alarm_verdict *verdict, alarm_event *event)
{
    uint32_t old = 0;
    int enough, cooling;
    while (old < state->num_recent && state->recent[old].position + state->rule.among <= state->windows) {
        old++;
    }
    state->num_recent -= old;
    memmove(state->recent, state->recent + old, state->num_recent * sizeof *state->recent);
    if (state->num_recent == ALARM_MOST_AMONG) {
        /* Cannot happen: among the last `among` windows, there are at most `among`. */
        return;
    }
    state->recent[state->num_recent].position = state->windows;
    state->recent[state->num_recent].clock = clock;
    state->recent[state->num_recent].verdict = *verdict;
    state->num_recent++;
    enough = state->num_recent >= state->rule.needed;
    cooling = state->has_ended && clock - state->ended_at < state->rule.cooldown_seconds;
    if (enough && !cooling) {
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
    if (state->state == ALARM_STATE_OPEN) {
        if (verdict->attack) {
            state->quiet = 0;
            merge(state, verdict);
        } else if (++state->quiet >= state->rule.clear) {
            end_alarm(state, 1, event);
        }
    } else if (verdict->attack) {
        attack(state, clock, verdict, event);
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

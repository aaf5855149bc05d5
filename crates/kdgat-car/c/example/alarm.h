/* The alarm layer of `kdgat detect --alarms` in C: verdicts of windows in, begin and end of episodes out.
 *
 * The rules are those of kdgat's crates/kdgat-detect/src/alarm/mod.rs. In short:
 * - `needed` attack windows among the last `among` raise an alarm; `clear` windows without an attack in a row end it.
 * - Within `cooldown_seconds` after the end of an alarm none is raised, unless it is more severe or names other IDs; an attack that
 *   outlasts them raises it then. In an open alarm, both are a change. `needed` windows among the last `among` have to be more severe;
 *   3 among the last 5 have to name an ID, or `needed` among `among` if these are more.
 * - A window since which an ID is gone raises an alarm at once, whatever the rule and the cooldown; in an open alarm it is a change.
 * - Seconds are counted on a clock of the windows' times: a step back counts 0, a step of more than a day counts a day, and a time
 *   that is NaN or infinite is ignored.
 * All state is in one struct that the caller owns; nothing is allocated. */
#ifndef KDGAT_ALARM_H
#define KDGAT_ALARM_H

#include <stdint.h>

#define ALARM_MOST_AMONG 64   /* largest `among` */
#define ALARM_MOST_TRACKED 32 /* different IDs kept for an episode; later ones are left out */
#define ALARM_MOST_LISTED 5   /* IDs listed in an event */
#define ALARM_CULPRITS_AMONG 5  /* windows among which other culprits are counted, if that is more than `among` */
#define ALARM_CULPRITS_NEEDED 3 /* attack windows that name an ID, if that is more than `needed` */
#define ALARM_MOST_NAMED 3    /* IDs that a window names */
#define ALARM_LONGEST_STEP_SECONDS 86400.0

typedef enum alarm_severity { ALARM_LOW, ALARM_MEDIUM, ALARM_HIGH } alarm_severity;

typedef struct alarm_rule {
    uint32_t needed;         /* 1 to among */
    uint32_t among;          /* 1 to ALARM_MOST_AMONG */
    uint64_t clear;          /* at least 1 */
    double cooldown_seconds; /* 0 or more */
} alarm_rule;

/* The verdict about a window. */
typedef struct alarm_verdict {
    uint64_t window;
    double time;
    double score;
    double deviations; /* NaN without a calibration */
    uint8_t attack;
    alarm_severity severity; /* of an attack window */
    uint8_t num_ids;         /* IDs that an attack window names, at most ALARM_MOST_NAMED */
    uint32_t id[ALARM_MOST_NAMED];
    uint8_t num_gone; /* IDs that are gone since this window: it raises an alarm alone, also in a cooldown */
    uint32_t gone[ALARM_MOST_NAMED];
} alarm_verdict;

/* An ID, and the attack windows that name it. */
typedef struct alarm_culprit {
    uint32_t id;
    uint64_t windows;
} alarm_culprit;

typedef enum alarm_kind { ALARM_NONE, ALARM_BEGIN, ALARM_CHANGE, ALARM_END } alarm_kind;

/* News about an attack. */
typedef enum alarm_news { ALARM_NO_NEWS, ALARM_NEW_SEVERITY, ALARM_NEW_CULPRITS, ALARM_NEW_GONE } alarm_news;

typedef struct alarm_event {
    alarm_kind kind;
    uint64_t alarm; /* number, from 1 */
    double time;    /* of the window that raised, changed or ended it */
    double since;   /* begin: time of the first attack window */
    uint64_t window;           /* begin, change: number of that window */
    double score;              /* begin, change: of that window; end: highest of the episode */
    double deviations;         /* likewise; NaN without a calibration */
    double duration_seconds;   /* end: on the clock, from the first attack window */
    uint64_t windows;          /* end: from the first attack window to the last window */
    uint64_t attack_windows;   /* so far */
    uint64_t suppressed;       /* begin: alarms suppressed since the last one began */
    alarm_news news;           /* change: what is new */
    alarm_severity severity;   /* highest so far */
    uint8_t cleared;           /* end: 1 by quiet windows, 0 by the end of the stream */
    uint8_t num_culprits;
    alarm_culprit culprit[ALARM_MOST_LISTED];
    uint8_t num_gone; /* begin, change: IDs that are gone since that window */
    uint32_t gone[ALARM_MOST_NAMED];
} alarm_event;

typedef struct alarm_clock {
    double last;
    double seconds;
    uint8_t has_last;
} alarm_clock;

/* Attack windows, merged. */
typedef struct alarm_merged {
    uint64_t attack_windows;
    double score, deviations;
    alarm_severity severity;
    uint32_t num_tracked;
    alarm_culprit tracked[ALARM_MOST_TRACKED];
} alarm_merged;

/* Contents are private. */
typedef struct alarm_state {
    alarm_rule rule;
    alarm_clock clock;
    uint64_t windows;
    double last_time;
    enum { ALARM_STATE_QUIET, ALARM_STATE_OPEN, ALARM_STATE_SUPPRESSED } state;
    uint64_t quiet;
    /* Attack windows among the last `among` or ALARM_CULPRITS_AMONG, whichever is more, oldest first. */
    uint32_t num_recent;
    struct {
        uint64_t position;
        double clock;
        alarm_verdict verdict;
    } recent[ALARM_MOST_AMONG];
    uint64_t raised;
    uint64_t suppressed;
    uint64_t suppressed_before; /* of them, before the last alarm began */
    uint8_t has_ended;
    double ended_at;
    /* Severity and IDs that the events of the last alarm have named. */
    alarm_severity told_severity;
    uint32_t num_told;
    uint32_t told[ALARM_MOST_TRACKED];
    /* The open episode. */
    uint64_t first_position;
    double first_clock;
    alarm_merged episode;
} alarm_state;

/* Advances a clock, which begins as zeros, and returns its seconds. */
double alarm_clock_advance(alarm_clock *clock, double time);

void alarm_init(alarm_state *state, const alarm_rule *rule);

/* Takes the verdict about the next window. Sets *event, whose kind is ALARM_NONE if nothing has happened. */
void alarm_push(alarm_state *state, const alarm_verdict *verdict, alarm_event *event);

/* Ends the stream: an open episode ends, a suppressed one is counted. */
void alarm_finish(alarm_state *state, alarm_event *event);

#endif

/* Frames before a window: the profile set compares a frame with the previous ones of its ID, and IDs that have become silent are nodes.
 * Empty for the other feature sets. */
#ifndef KDGAT_HISTORY_H
#define KDGAT_HISTORY_H

#include "kdgat_internal.h"

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

/* IDs that are followed. On a bus with more, those with the fewest frames are forgotten, which the trainer does from 8192 IDs on: until
 * then all results are equal. A bus without extended IDs has at most 2048; each takes 82 bytes. */
#ifndef KDGAT_HISTORY_IDS
#define KDGAT_HISTORY_IDS 2048u
#endif

/* Fewest frames from which an ID has a usual gap. */
#define KDGAT_FEWEST_FRAMES 4u
/* Gaps are clamped to this many seconds either way. */
#define KDGAT_LONGEST_GAP 1000.0

/* The latest frame of an ID. */
typedef struct {
    double time;
    double scheduled; /* time of the last frame on schedule */
    double before;    /* the same for the frames before the window; NaN without one */
    double usual_gap; /* running mean of the gaps between frames on schedule, in seconds */
    uint64_t index;   /* number of the frame */
    uint32_t id;
    uint32_t frames;
    uint8_t payload[8];
    uint8_t earlier[8]; /* payload of the frame before it */
    uint8_t repeated[8]; /* frames in a row in which each byte repeated the value before it, at most 255 */
    uint8_t has_earlier;
    uint8_t length;
} kdgat_latest;

/* Relation of a frame to the previous one of its ID. */
typedef struct {
    double scheduled; /* time of the ID's last frame on schedule, this one included */
    float gap;        /* seconds since the previous frame, NaN without one */
    uint8_t previous[8];
    uint8_t repeated[8]; /* see kdgat_latest, this frame included */
    uint8_t has_previous;
    uint8_t returns; /* 1: the payload differs from the previous one, and equals the one before that */
} kdgat_fact;

typedef struct {
    kdgat_latest latest[KDGAT_HISTORY_IDS];
    uint16_t by_id[KDGAT_HISTORY_IDS]; /* entries of `latest`, by ascending ID */
    uint32_t num_ids;
    uint64_t observed; /* number of frames so far */
    kdgat_fact facts[KDGAT_WINDOW + 1u]; /* of the frames of the window */
    uint32_t num_overdue;
    uint32_t overdue[KDGAT_MOST_OVERDUE]; /* IDs that have been silent for long at the window's end, ascending */
    float silence[KDGAT_MOST_OVERDUE];    /* seconds since their last frame */
} kdgat_history;

/* Observes a frame of the bus; sets its fact. */
void kdgat_observe(kdgat_history *history, const struct kdgat_frame *frame, kdgat_fact *fact);

/* Notes that a frame with this ID and fact lies before the next window. */
void kdgat_pass(kdgat_history *history, uint32_t id, const kdgat_fact *fact);

/* Finds the overdue IDs of the window that began with frame `first_frame` and ended at `end`. All its frames, and none after it, must
 * have been observed. */
void kdgat_find_overdue(kdgat_history *history, uint64_t first_frame, double end);

/* Seconds since the last frame of an overdue ID; NaN for others. */
float kdgat_silence(const kdgat_history *history, uint32_t id);

/* Time of the last frame of an ID on schedule before the window, in seconds from the window's beginning; NaN without one. */
float kdgat_scheduled(const kdgat_history *history, uint32_t id, double begin);

#endif

#endif

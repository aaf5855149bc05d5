/* Learns the profile of a car from recorded windows, for the calibration of models of the profile set. Empty for the other sets. */
#ifndef KDGAT_LEARN_H
#define KDGAT_LEARN_H

#include "kdgat_car.h"

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

/* Parts of the recording: each is judged with a profile that was learned from the others. */
#define KDGAT_PARTS 5u
/* Bins of a histogram of gaps: 32 for each doubling, from 1 us to 1000 s. */
#define KDGAT_GAP_BINS 960u
/* Frames of `windows` windows. */
#define KDGAT_FRAMES_OF(windows) (((windows) - 1u) * KDGAT_STRIDE + KDGAT_WINDOW_FRAMES)

/* Counts of what one ID does. */
typedef struct {
    uint32_t frames;
    uint32_t pairs; /* frames with a previous frame */
    uint32_t repeats;
    uint32_t returns;
    uint32_t changed_bytes;
    double gap_sum;
    double watched;    /* sum of the gaps without pauses of the logs, in seconds */
    float longest_gap; /* the longest of these */
    uint32_t gaps[KDGAT_GAP_BINS];
    uint32_t changes[KDGAT_PROFILE_BYTES][256];
} kdgat_counts;

/* Recorded frames with their relation to those before. */
typedef struct {
    const kdgat_frame *frames;
    const kdgat_fact *facts;
    uint32_t windows; /* the first one begins with frame 0; kdgat_step says where the next one does */
    const uint8_t *begins_log; /* bit w % 8 of byte w / 8: window w is the first of a further log */
} kdgat_recording;

/* Returns 1 if the window is the first one of a further log. */
int kdgat_begins_log(const kdgat_recording *recording, uint32_t window);

/* Frames from the begin of a window to that of the next one. Of a log, the frames of its windows are recorded, and no others. */
uint32_t kdgat_step(const kdgat_recording *recording, uint32_t window);

/* Learns a profile from all parts but `without` (KDGAT_PARTS: from all) into car->usual, num_usual and new_id_surprise; IDs that only that
 * part has are learned from it, as the car's profile will know them. Returns 0 for more than KDGAT_CALIBRATION_IDS IDs. */
int kdgat_learn(const kdgat_recording *recording, uint32_t without, kdgat_counts *counts, kdgat_calibration_state *car);

#endif

#endif

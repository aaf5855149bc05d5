/* IDs that fall silent for the rest of a drive, reported once each. Empty for the feature sets without a profile. */
#ifndef KDGAT_GONE_H
#define KDGAT_GONE_H

#include "kdgat_calibration.h"

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

/* Most seconds from one frame to the next, or from one window's end to the next one's, that are no pause of the log. */
#define KDGAT_LONGEST_STEP 1.0

/* IDs that are followed: those of the profile in use. */
#if KDGAT_PROFILE_IDS > KDGAT_CALIBRATION_IDS
#define KDGAT_GONE_IDS KDGAT_PROFILE_IDS
#else
#define KDGAT_GONE_IDS KDGAT_CALIBRATION_IDS
#endif

/* What the watch knows about an ID of the profile. */
enum { KDGAT_NOT_SEEN, KDGAT_SENDS, KDGAT_SETTLED /* its silence was reported, or counted as the car's sleep */ };

typedef struct {
    double clock;  /* seconds of traffic */
    double latest; /* time of the last window's last frame */
    double seen[KDGAT_GONE_IDS]; /* clock at the last window with a frame of the ID */
    uint8_t state[KDGAT_GONE_IDS];
    uint8_t begun;
} kdgat_gone;

/* Silence from which an ID is gone, in seconds; infinite if too little is known about it. */
float kdgat_gone_seconds(const kdgat_usual *usual);

/* Takes the graph of the next window. Sets num_gone and gone of the result: the IDs that are gone since this window. */
void kdgat_find_gone(kdgat_gone *watch, const kdgat_profile *profile, const kdgat_graph *graph, double begin, struct kdgat_result *result);

#endif

#endif

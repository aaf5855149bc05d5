/* A car's calibration, as the detector uses it. kdgat_calibrate.h makes, saves and loads it. */
#ifndef KDGAT_CALIBRATION_H
#define KDGAT_CALIBRATION_H

#include "kdgat_internal.h"
#include "kdgat_profile.h"

/* Most IDs in a car's list of known IDs, and in its profile. */
#ifndef KDGAT_CALIBRATION_IDS
#define KDGAT_CALIBRATION_IDS 256u
#endif

/* Values of a packed lower triangle. */
#define KDGAT_FACTOR_VALUES (KDGAT_PROFILE_VALUES * (KDGAT_PROFILE_VALUES + 1u) / 2u)

typedef struct kdgat_calibration_state {
    uint8_t calibrated;
    double median;    /* of the windows' values: log odds, or logarithm of the distance from usual errors */
    double spread;    /* robust standard deviation of them; above 0 */
    double threshold; /* in deviations; more is an attack */
#if KDGAT_ID_LIST
    double evidence; /* added to the log odds of a window with an ID outside the car's list; 0: the list is not used */
    uint32_t num_ids;
    uint32_t ids[KDGAT_CALIBRATION_IDS]; /* ascending */
#endif
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    uint8_t counts_bytes; /* 0: values and changes of bytes are no deviations on this car */
    float new_id_surprise;
    uint32_t num_usual;
    kdgat_usual usual[KDGAT_CALIBRATION_IDS]; /* the car's profile, by ascending ID */
#endif
#if KDGAT_MODEL == KDGAT_MODEL_VGAE
    double mean[KDGAT_PROFILE_VALUES];  /* usual errors of a window */
    double factor[KDGAT_FACTOR_VALUES]; /* Cholesky factor of their covariance, row after row */
#endif
} kdgat_calibration_state;

#if KDGAT_MODEL == KDGAT_MODEL_VGAE
/* Value i of a window's profile of errors: means as they are, mean squares and cross entropy as logarithms. */
double kdgat_profile_value(const float *error_means, uint32_t i);

/* Mahalanobis distance of a window's errors from the mean, given the Cholesky factor of the covariance. */
double kdgat_distance(const double *mean, const double *factor, const float *error_means);
#endif

/* Logarithm of a distance; distances vary by factors. */
double kdgat_log_distance(double distance);

#endif

//! Work of the teacher's thread, from the columns that it adds to `steps.csv`.

/// The teacher's work between the last two rows and in total.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TeacherState {
    /// `resident`, `forward`, `layer`, or `cached`.
    pub mode: String,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Bytes of the weights that are on the device.
    pub device_bytes: u64,
    /// Graphs with cached targets, since the panel opened.
    pub hits: u64,
    /// Graphs with computed targets, since the panel opened.
    pub misses: u64,
    /// Fraction of the time between the last two rows spent in the teacher's forward.
    pub forward: f64,
    /// Fraction spent copying weights.
    pub copy: f64,
    /// Fraction in which the teacher's forward waited for copies.
    pub copy_exposed: f64,
    /// Fraction in which the student waited for the teacher.
    pub student_wait: f64,
    last_row: f64,
}

impl TeacherState {
    /// A teacher about which nothing is known yet at `began`, in seconds.
    pub fn new(began: f64) -> Self {
        Self { last_row: began, ..Self::default() }
    }

    /// Limits the first row of an epoch to that epoch's steps and the validation before them.
    pub fn epoch_began(&mut self, now: f64) {
        // Weights are saved between two epochs; in short epochs that would show as idle time.
        self.last_row = self.last_row.max(now - 1.0);
    }

    /// Adds a row written at `now`.
    pub fn row(&mut self, now: f64, columns: &[&str], values: &[String]) {
        let text = |name: &str| {
            let place = columns.iter().position(|column| *column == name);
            place.and_then(|place| values.get(place)).map_or("", String::as_str)
        };
        let number = |name: &str| text(name).parse::<f64>().unwrap_or(0.0);
        let milliseconds = (1e3 * (now - self.last_row)).max(1e-3);
        let share = |name: &str| (number(name) / milliseconds).clamp(0.0, 1.0);
        self.mode = text("teacher_mode").to_owned();
        self.bytes = number("teacher_bytes") as u64;
        self.device_bytes = number("device_bytes_teacher") as u64;
        self.hits += number("cache_hit_rows") as u64;
        self.misses += number("cache_miss_rows") as u64;
        self.forward = share("teacher_forward_ms");
        self.copy = share("copy_ms");
        self.copy_exposed = share("copy_exposed_ms");
        self.student_wait = share("student_wait_ms");
        self.last_row = now;
    }

    /// Fraction of the targets that were cached.
    pub fn kept(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// State of the teacher's thread, in one word.
    pub fn doing(&self) -> &'static str {
        match (self.forward, self.copy) {
            (forward, copy) if forward == 0.0 && copy == 0.0 => "idle",
            (forward, _) if self.student_wait > 0.5 * forward => "awaited",
            _ => "busy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [&str; 6] =
        ["teacher_mode", "teacher_forward_ms", "copy_ms", "student_wait_ms", "cache_hit_rows", "cache_miss_rows"];

    fn row(teacher: &mut TeacherState, now: f64, values: [&str; 6]) {
        teacher.row(now, &COLUMNS, &values.map(str::to_owned));
    }

    #[test]
    fn times_are_shares_of_the_time_between_rows_and_counts_add_up() {
        let mut teacher = TeacherState::new(10.0);
        row(&mut teacher, 12.0, ["forward", "1000.0", "500.0", "1200.0", "0", "30"]);
        assert_eq!((teacher.forward, teacher.copy, teacher.student_wait), (0.5, 0.25, 0.6));
        assert_eq!(teacher.doing(), "awaited");
        row(&mut teacher, 13.0, ["cached", "0.000", "0.000", "100.0", "90", "0"]);
        assert_eq!((teacher.forward, teacher.student_wait, teacher.hits, teacher.misses), (0.0, 0.1, 90, 30));
        assert_eq!(teacher.kept(), 0.75);
        assert_eq!(teacher.doing(), "idle");
    }

    #[test]
    fn missing_columns_count_as_zero() {
        let mut teacher = TeacherState::new(0.0);
        teacher.row(1.0, &["teacher_mode"], &["layer".to_owned()]);
        assert_eq!((teacher.mode.as_str(), teacher.misses, teacher.bytes), ("layer", 0, 0));
        assert_eq!(teacher.kept(), 0.0);
    }
}

//! The car and its driver: correlated physical signals.
//!
//! The driver picks a target speed every few seconds; pedal and brake follow it. They determine acceleration; speed and pedal
//! the gear; gear and speed the engine speed; the engine's work temperatures and fuel. Only additions, multiplications and
//! divisions are used, so that every machine computes the same bits.

use super::random::{Purpose, Stream};
use super::route::{DrivingState, Route};

/// Time step of the physics in seconds.
const STEP_SECONDS: f64 = 0.01;
/// Time step of the physics in nanoseconds.
const STEP_NANOSECONDS: u64 = 10_000_000;
/// Target speeds that the driver picks from, km/h: standing, town, road, motorway.
const TARGET_SPEEDS_KMH: [f64; 8] = [0.0, 20.0, 32.0, 50.0, 50.0, 70.0, 95.0, 120.0];
/// Speed of each upshift at moderate pedal, km/h; the pedal scales it by 0.75 to 1.5.
const UPSHIFT_KMH: [f64; 5] = [16.0, 32.0, 50.0, 72.0, 98.0];
/// Engine revolutions per minute for each km/h, by gear.
const RPM_PER_KMH: [f64; 6] = [115.0, 68.0, 46.0, 34.0, 27.0, 22.0];
const IDLE_RPM: f64 = 780.0;
/// Speed below which a car stands, km/h.
const STANDING_KMH: f64 = 0.3;
/// Voltage of the battery while the engine is off.
const PARKED_VOLTS: f64 = 12.4;
/// Share of the difference to the outside temperature by which a parked car cools down in a second.
const COOLING_PER_SECOND: f64 = 0.000_5;
/// A parked car is filled up below this level of the tank, in percent, and to this one.
const LEAST_FUEL: f64 = 20.0;
const FILLED: f64 = 95.0;

/// A quantity that messages carry. Units are those of [`State`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Speed of the car.
    Speed,
    /// Speed of the front left wheel.
    WheelFrontLeft,
    /// Speed of the front right wheel.
    WheelFrontRight,
    /// Speed of the rear left wheel.
    WheelRearLeft,
    /// Speed of the rear right wheel.
    WheelRearRight,
    /// Engine revolutions.
    EngineSpeed,
    /// Revolutions at the transmission's input.
    TurbineSpeed,
    /// Engine torque.
    Torque,
    /// Accelerator pedal position.
    Pedal,
    /// Throttle position.
    Throttle,
    /// Brake pressure.
    Brake,
    /// 1 while braking, else 0.
    BrakeSwitch,
    /// Gear, 1 to 6.
    Gear,
    /// 1 during a gear shift, else 0.
    Shifting,
    /// Angle of the steering wheel, positive to the left.
    SteeringAngle,
    /// Rate of change of the steering angle, per second.
    SteeringRate,
    /// Torque on the steering wheel.
    SteeringTorque,
    /// Turning rate of the car, per second.
    YawRate,
    /// Acceleration to the side.
    LateralAcceleration,
    /// Acceleration along the road.
    LongitudinalAcceleration,
    /// Temperature of the coolant.
    CoolantTemperature,
    /// Temperature of the oil.
    OilTemperature,
    /// Temperature of the intake air.
    IntakeTemperature,
    /// Temperature outside.
    OutsideTemperature,
    /// Voltage of the battery.
    BatteryVoltage,
    /// Fill level of the tank.
    FuelLevel,
    /// Fuel consumption.
    FuelRate,
    /// Distance driven since the car was built.
    Odometer,
    /// 1 if the headlights are on, else 0.
    Headlights,
    /// 0 off, 1 left, 2 right.
    TurnIndicator,
    /// Wiper level, 0 to 2.
    Wiper,
    /// Tire pressure.
    TirePressure,
    /// Time since the car was switched on.
    Seconds,
}

/// The car's state at one moment. Units: km/h, 1/min, Nm, percent, bar, degrees, m/s², °C, V, l/h, km, s.
#[derive(Debug, Clone, Copy)]
pub struct State {
    /// Speed in km/h.
    pub speed: f64,
    /// Engine speed in 1/min.
    pub engine_speed: f64,
    /// Engine torque in Nm.
    pub torque: f64,
    /// Accelerator pedal position in percent.
    pub pedal: f64,
    /// Brake pressure in bar.
    pub brake: f64,
    /// Gear, 1 to 6.
    pub gear: usize,
    shifting_seconds: f64,
    /// Steering angle in degrees, positive to the left.
    pub steering_angle: f64,
    steering_rate: f64,
    acceleration: f64,
    coolant: f64,
    oil: f64,
    outside: f64,
    battery: f64,
    fuel: f64,
    odometer: f64,
    headlights: bool,
    turn_signal: f64,
    wiper: f64,
    tire_pressure: f64,
    seconds: f64,
    parked: bool,
}

impl State {
    /// True while the engine is off.
    pub fn is_parked(&self) -> bool {
        self.parked
    }

    /// The value of a signal.
    pub fn signal(&self, signal: Signal) -> f64 {
        // Positive steering turns left: the outer wheels and the front wheels travel further.
        let curve = self.steering_angle * 0.000_12;
        let yaw_rate = self.speed * self.steering_angle * 0.006;
        match signal {
            Signal::Speed => self.speed,
            Signal::WheelFrontLeft => self.speed * (1.002 - curve),
            Signal::WheelFrontRight => self.speed * (1.002 + curve),
            Signal::WheelRearLeft => self.speed * (1.0 - curve),
            Signal::WheelRearRight => self.speed * (1.0 + curve),
            Signal::EngineSpeed => self.engine_speed,
            Signal::TurbineSpeed => self.speed * RPM_PER_KMH[self.gear - 1],
            Signal::Torque => self.torque,
            Signal::Pedal => self.pedal,
            Signal::Throttle => 4.0 + 0.9 * self.pedal,
            Signal::Brake => self.brake,
            Signal::BrakeSwitch => f64::from(self.brake > 0.5),
            Signal::Gear => self.gear as f64,
            Signal::Shifting => f64::from(self.shifting_seconds > 0.0),
            Signal::SteeringAngle => self.steering_angle,
            Signal::SteeringRate => self.steering_rate,
            Signal::SteeringTorque => self.steering_angle * 0.05 + self.steering_rate * 0.02,
            Signal::YawRate => yaw_rate,
            Signal::LateralAcceleration => self.speed / 3.6 * yaw_rate * 0.017_45,
            Signal::LongitudinalAcceleration => self.acceleration,
            Signal::CoolantTemperature => self.coolant,
            Signal::OilTemperature => self.oil,
            Signal::IntakeTemperature => self.outside + 0.1 * (self.coolant - self.outside),
            Signal::OutsideTemperature => self.outside,
            Signal::BatteryVoltage => self.battery,
            Signal::FuelLevel => self.fuel,
            Signal::FuelRate => self.fuel_rate(),
            Signal::Odometer => self.odometer,
            Signal::Headlights => f64::from(self.headlights),
            Signal::TurnIndicator => self.turn_signal,
            Signal::Wiper => self.wiper,
            Signal::TirePressure => self.tire_pressure,
            Signal::Seconds => self.seconds,
        }
    }

    fn fuel_rate(&self) -> f64 {
        if self.parked {
            return 0.0;
        }
        0.6 + self.engine_speed * self.torque.max(0.0) * 0.000_03
    }
}

/// The car during a drive.
pub struct Vehicle {
    state: State,
    steps: u64,
    driver: Stream,
    road: Stream,
    /// The driver's current target speed in km/h.
    target_speed: f64,
    /// Time at which the driver picks the next target speed, in seconds.
    next_wish_seconds: f64,
    wishes: u64,
    /// The states of the drive, and the current one; `None` for a drive on any road.
    route: Option<Route>,
    doing: Option<DrivingState>,
}

impl Vehicle {
    /// A car that is already moving, with speed and temperatures that depend on the drive.
    pub fn new(drive: Stream) -> Vehicle {
        let environment = drive.purpose(Purpose::Environment);
        let driver = drive.purpose(Purpose::Driver);
        let outside = environment.between(0, -5.0, 30.0);
        let speed = TARGET_SPEEDS_KMH[driver.below(u64::MAX, TARGET_SPEEDS_KMH.len())];
        let state = State {
            speed,
            engine_speed: IDLE_RPM,
            torque: 20.0,
            pedal: 0.0,
            brake: 0.0,
            gear: 1 + UPSHIFT_KMH.iter().filter(|limit| speed > **limit).count(),
            shifting_seconds: 0.0,
            steering_angle: 0.0,
            steering_rate: 0.0,
            acceleration: 0.0,
            coolant: environment.between(1, outside.max(20.0), 90.0),
            oil: environment.between(2, outside.max(20.0), 85.0),
            outside,
            battery: 13.9,
            fuel: environment.between(3, 15.0, 95.0),
            odometer: environment.between(4, 41_000.0, 42_000.0),
            headlights: environment.uniform(5) < 0.5,
            turn_signal: 0.0,
            wiper: 0.0,
            tire_pressure: environment.between(6, 2.2, 2.5),
            seconds: environment.between(7, 0.0, 3600.0),
            parked: false,
        };
        let road = drive.purpose(Purpose::Road);
        Vehicle {
            state,
            steps: 0,
            driver,
            road,
            target_speed: speed,
            next_wish_seconds: 0.0,
            wishes: 0,
            route: None,
            doing: None,
        }
    }

    /// A car that stands, and drives through the states of a route.
    pub fn on_route(drive: Stream, mut route: Route) -> Vehicle {
        let doing = route.at(0);
        let mut vehicle = Vehicle { route: Some(route), doing: Some(doing), target_speed: 0.0, ..Vehicle::new(drive) };
        (vehicle.state.speed, vehicle.state.gear) = (0.0, 1);
        vehicle.state.parked = doing == DrivingState::Parked;
        vehicle
    }

    /// The route, if the drive has one.
    pub fn into_route(self) -> Option<Route> {
        self.route
    }

    /// Advances the car to time `nanoseconds` of the drive, which must not decrease, and returns its state.
    pub fn at(&mut self, nanoseconds: u64) -> &State {
        while self.steps * STEP_NANOSECONDS < nanoseconds {
            self.steps += 1;
            self.step(self.steps as f64 * STEP_SECONDS);
        }
        &self.state
    }

    fn step(&mut self, now: f64) {
        if let Some(route) = &mut self.route {
            let doing = Some(route.at(self.steps * STEP_NANOSECONDS));
            if doing != self.doing {
                (self.doing, self.next_wish_seconds) = (doing, now);
            }
            self.state.parked = doing == Some(DrivingState::Parked) && self.state.speed < STANDING_KMH;
        }
        if self.state.parked {
            return self.rest();
        }
        self.drive(now);
        self.accelerate();
        self.turn(now);
        self.warm_up(now);
    }

    /// Updates a car whose engine is off.
    fn rest(&mut self) {
        let state = &mut self.state;
        (state.speed, state.acceleration, state.engine_speed, state.torque) = (0.0, 0.0, 0.0, 0.0);
        (state.pedal, state.brake, state.gear, state.shifting_seconds) = (0.0, 0.0, 1, 0.0);
        (state.steering_rate, state.turn_signal, state.wiper) = (0.0, 0.0, 0.0);
        state.battery = PARKED_VOLTS;
        let cooled = COOLING_PER_SECOND * STEP_SECONDS;
        state.coolant += (state.outside - state.coolant) * cooled;
        state.oil += (state.outside - state.oil) * cooled;
        if state.fuel < LEAST_FUEL {
            state.fuel = FILLED;
        }
        state.seconds += STEP_SECONDS;
    }

    /// Updates the driver's target speed, and pedal and brake towards it.
    fn drive(&mut self, now: f64) {
        if now >= self.next_wish_seconds {
            self.wishes += 1;
            let speeds = self.doing.map_or(&TARGET_SPEEDS_KMH[..], DrivingState::target_speeds_kmh);
            self.target_speed = speeds[self.driver.below(2 * self.wishes, speeds.len())];
            self.next_wish_seconds = now + self.driver.between(2 * self.wishes + 1, 5.0, 14.0);
        }
        let state = &mut self.state;
        let missing = self.target_speed * (1.0 + 0.03 * self.driver.curve(now / 2.0)) - state.speed;
        let holding = if self.target_speed > 0.0 { 4.0 + 0.14 * state.speed } else { 0.0 };
        let pedal = if missing > -6.0 { (holding + 4.5 * missing).clamp(0.0, 90.0) } else { 0.0 };
        let brake = if missing < -3.0 { (-1.6 * missing).clamp(2.0, 60.0) } else { 0.0 };
        let brake = if self.target_speed == 0.0 && state.speed < 3.0 { 12.0 } else { brake };
        state.pedal += (if brake > 0.0 { 0.0 } else { pedal } - state.pedal) * 0.04;
        state.brake += (brake - state.brake) * 0.08;
    }

    /// Updates torque, acceleration, gear and engine speed.
    fn accelerate(&mut self) {
        let state = &mut self.state;
        let engaged = if state.shifting_seconds > 0.0 { 0.25 } else { 1.0 };
        let wanted = engaged * (2.6 * state.pedal - 14.0 + if state.speed < 5.0 { 20.0 } else { 0.0 });
        state.torque += (wanted - state.torque) * 0.12;
        let ratio = RPM_PER_KMH[state.gear - 1];
        let drag = 0.12 + 0.000_055 * state.speed * state.speed;
        let road_force = if state.speed > 0.3 { drag + 0.11 * state.brake } else { 0.11 * state.brake };
        state.acceleration = state.torque * ratio.min(60.0) * 0.000_36 - road_force;
        let before = state.speed;
        state.speed = (before + state.acceleration * 3.6 * STEP_SECONDS).clamp(0.0, 200.0);
        state.acceleration = (state.speed - before) / (3.6 * STEP_SECONDS);
        state.odometer += state.speed * STEP_SECONDS / 3600.0;

        state.shifting_seconds -= STEP_SECONDS;
        let eager = 0.75 + 0.008 * state.pedal;
        if state.shifting_seconds <= 0.0 {
            let up = state.gear < 6 && state.speed > UPSHIFT_KMH[state.gear - 1] * eager;
            let down = state.gear > 1 && state.speed < UPSHIFT_KMH[state.gear - 2] * eager * 0.75;
            if up || down {
                state.gear = if up { state.gear + 1 } else { state.gear - 1 };
                state.shifting_seconds = 0.35;
            }
        }
        let slip = 1.0 + 0.001 * state.torque.max(0.0);
        let wanted = (state.speed * RPM_PER_KMH[state.gear - 1] * slip).max(IDLE_RPM + 2.0 * state.pedal);
        state.engine_speed += (wanted - state.engine_speed) * 0.08;
    }

    /// Updates steering, turn signals, lights and wipers.
    fn turn(&mut self, now: f64) {
        let state = &mut self.state;
        let before = state.steering_angle;
        let bend = self.road.child(1).curve(now / 6.0);
        let correction = self.road.child(2).curve(now / 0.8);
        let wanted = (bend * bend * bend * 260.0 + 6.0 * correction) / (1.0 + state.speed * 0.05);
        state.steering_angle += (wanted - before) * 0.05;
        state.steering_rate = (state.steering_angle - before) / STEP_SECONDS;
        let signalling = bend.abs() > 0.55;
        let blink = ((now / 0.4) as u64).is_multiple_of(2);
        state.turn_signal = if signalling && blink { 1.0 + f64::from(bend < 0.0) } else { 0.0 };
        if self.road.child(3).uniform((now / 20.0) as u64) < 0.1 && now % 20.0 < STEP_SECONDS {
            state.headlights = !state.headlights;
        }
        state.wiper = (self.road.child(4).curve(now / 25.0) * 4.0 - 1.0).floor().clamp(0.0, 2.0);
    }

    /// Updates temperatures, battery, fuel and clock.
    fn warm_up(&mut self, now: f64) {
        let state = &mut self.state;
        let heat = 0.4 + 0.000_004 * state.engine_speed * state.torque.max(0.0);
        state.coolant += ((91.0 - state.coolant) * 0.006 * heat + 0.02 * self.road.child(5).curve(now)) * STEP_SECONDS;
        state.oil += (state.coolant + 4.0 - state.oil) * 0.004 * STEP_SECONDS;
        state.battery = 13.9 + 0.15 * self.road.child(6).curve(now / 3.0) - 0.2 * f64::from(state.headlights);
        state.fuel = (state.fuel - state.fuel_rate() * STEP_SECONDS / 3600.0 * 2.0).max(0.0);
        state.seconds += STEP_SECONDS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_stay_within_a_cars_limits_and_move_together() {
        for drive in 0..10 {
            let mut vehicle = Vehicle::new(Stream::new(1).child(drive));
            let (mut fastest, mut gears) = (0.0f64, [false; 6]);
            for second in 1..600u64 {
                let state = *vehicle.at(second * 1_000_000_000);
                assert!((0.0..=150.0).contains(&state.speed), "speed {}", state.speed);
                assert!((700.0..=6500.0).contains(&state.engine_speed), "engine {}", state.engine_speed);
                assert!((-20.0..=110.0).contains(&state.coolant), "coolant {}", state.coolant);
                assert!(state.steering_angle.abs() < 300.0, "steering {}", state.steering_angle);
                assert!(state.speed < 60.0 || state.gear >= 3, "{} km/h in gear {}", state.speed, state.gear);
                fastest = fastest.max(state.speed);
                gears[state.gear - 1] = true;
            }
            assert!(fastest > 60.0, "drive {drive} never gets going: {fastest} km/h");
            assert!(gears.iter().filter(|used| **used).count() >= 4, "drive {drive} uses gears {gears:?}");
        }
    }
}

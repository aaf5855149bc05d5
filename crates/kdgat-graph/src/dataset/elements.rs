//! Symbols of the chemical elements.

/// The symbols by atomic number, and deuterium and tritium.
const SYMBOLS: &str = "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo \
                       Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg \
                       Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og \
                       D T";

/// The symbol that a text writes in any case; `None` for anything else.
pub(super) fn symbol(text: &str) -> Option<&'static str> {
    SYMBOLS.split_whitespace().find(|symbol| symbol.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_known_in_any_case() {
        assert_eq!(
            (symbol("o"), symbol("O"), symbol("CL"), symbol("cl")),
            (Some("O"), Some("O"), Some("Cl"), Some("Cl"))
        );
        assert_eq!((symbol("C1"), symbol("X"), symbol("")), (None, None, None));
        assert_eq!(SYMBOLS.split_whitespace().count(), 120);
    }
}

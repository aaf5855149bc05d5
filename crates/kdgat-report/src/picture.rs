//! Figures as files: SVG, and PNG rendered from it in programs that are built with the feature `png`.

use std::fs;
use std::path::Path;

use super::ReportError;
use super::figures::Figure;
use kdgat_base::files;

/// Writes each figure as SVG and, if the program can and the system has a font, as PNG. Returns the numbers of SVG and PNG files.
pub fn write<'a>(figures: impl Iterator<Item = &'a Figure>, folder: &Path) -> Result<(usize, usize), ReportError> {
    fs::create_dir_all(folder).map_err(ReportError::file(folder, "create"))?;
    let renderer = png::Renderer::new();
    let (mut vectors, mut pictures) = (0, 0);
    for figure in figures {
        let svg = figure.svg.standalone(&figure.title);
        let path = folder.join(format!("{}.svg", figure.slug));
        files::write_atomically(&path, svg.as_bytes()).map_err(ReportError::file(&path, "write"))?;
        vectors += 1;
        if let Some(renderer) = &renderer {
            let path = path.with_extension("png");
            let png = renderer.render(&svg, &path)?;
            files::write_atomically(&path, &png).map_err(ReportError::file(&path, "write"))?;
            pictures += 1;
        }
    }
    Ok((vectors, pictures))
}

/// Rendering with the feature `png`.
#[cfg(feature = "png")]
mod png {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use resvg::tiny_skia::{Pixmap, Transform};
    use resvg::usvg::{Options, Tree, fontdb};

    use crate::ReportError;

    /// Pixels of a PNG per unit of a chart.
    const PNG_SCALE: f32 = 2.0;
    /// Preferred font families for text in PNG files, in this order.
    const FAMILIES: [&str; 5] = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica"];

    /// Renders SVG text with the fonts of the system.
    pub struct Renderer(Arc<fontdb::Database>);

    impl Renderer {
        /// Loads the system's fonts; `None` if there are none, since PNG files would lack all text.
        pub fn new() -> Option<Self> {
            let mut fonts = fontdb::Database::new();
            fonts.load_system_fonts();
            let has = |family: &str| fonts.faces().any(|face| face.families.iter().any(|(name, _)| name == family));
            let usual = FAMILIES.into_iter().find(|family| has(family)).map(str::to_owned);
            let family = usual.or_else(|| {
                fonts.faces().find(|face| !face.monospaced)?.families.first().map(|(name, _)| name.clone())
            })?;
            fonts.set_sans_serif_family(family);
            Some(Self(Arc::new(fonts)))
        }

        /// Returns the bytes of a PNG file; `path` is for errors.
        pub fn render(&self, svg: &str, path: &Path) -> Result<Vec<u8>, ReportError> {
            let failed = |reason: String| ReportError::Picture { path: PathBuf::from(path), reason };
            let options = Options { fontdb: Arc::clone(&self.0), ..Options::default() };
            let tree = Tree::from_str(svg, &options).map_err(|error| failed(error.to_string()))?;
            let size = tree.size().to_int_size().scale_by(PNG_SCALE);
            let size = size.ok_or_else(|| failed("has no size".to_owned()))?;
            let pixels = Pixmap::new(size.width(), size.height());
            let mut pixels = pixels.ok_or_else(|| failed("is too large for a PNG file".to_owned()))?;
            resvg::render(&tree, Transform::from_scale(PNG_SCALE, PNG_SCALE), &mut pixels.as_mut());
            pixels.encode_png().map_err(|error| failed(error.to_string()))
        }
    }
}

/// A program without the feature `png` renders nothing.
#[cfg(not(feature = "png"))]
mod png {
    use std::convert::Infallible;
    use std::path::Path;

    use crate::ReportError;

    /// A renderer that cannot exist.
    pub struct Renderer(Infallible);

    impl Renderer {
        /// Returns `None`.
        pub fn new() -> Option<Self> {
            None
        }

        /// Never called.
        pub fn render(&self, _: &str, _: &Path) -> Result<Vec<u8>, ReportError> {
            match self.0 {}
        }
    }
}

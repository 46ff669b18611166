//! Compiles the verifier's shaders with a GPU's own compiler, on a machine without that GPU. Mesa's RADV driver opens an absent
//! AMD GPU (`RADV_FORCE_FAMILY`), compiles for that generation with ACO, the compiler that AMD's users on Linux have, and reports
//! statistics and assembly of each pipeline. Shaders are WGSL and pass through naga with wgpu's options.

pub mod assembly;
pub mod generations;
pub mod spirv;
pub mod table;
pub mod vulkan;

/// The reasons why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no Vulkan loader (libvulkan.so.1).
    #[error("there is no Vulkan loader: {0}; install libvulkan1 and mesa-vulkan-drivers")]
    Loader(String),
    /// No device reports on its compiled code.
    #[error(
        "none of {0} Vulkan devices has VK_KHR_pipeline_executable_properties; to compile for AMD's GPUs without one, install Mesa's \
         RADV driver (mesa-vulkan-drivers)"
    )]
    NoDevice(usize),
    /// The device reports statistics, but no assembly.
    #[error("{0} does not show its machine code")]
    NoAssembly(String),
    /// A call of Vulkan failed.
    #[error("{what}: {code}")]
    Vulkan {
        /// The function.
        what: &'static str,
        /// The returned code.
        code: ash::vk::Result,
    },
    /// A text is no shader, or no shader of the verifier's kind.
    #[error("{shader}: {message}")]
    Shader {
        /// The shader's name.
        shader: String,
        /// The defect.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The process that compiles for a generation failed.
    #[error("compiling for {generation}: {message}")]
    Process {
        /// The generation, as `RADV_FORCE_FAMILY` names it.
        generation: String,
        /// The process's message.
        message: String,
    },
}

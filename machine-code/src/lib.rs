//! What a GPU's own compiler makes of the verifier's shaders, on a machine without that GPU. Mesa's RADV driver opens an AMD GPU that is
//! not there (`RADV_FORCE_FAMILY`), compiles for that generation with ACO, the compiler that AMD's users on Linux have, and says what
//! became of each pipeline. Shaders are WGSL and go through naga as wgpu has it.

pub mod assembly;
pub mod generations;
pub mod spirv;
pub mod table;
pub mod vulkan;

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no Vulkan loader (libvulkan.so.1).
    #[error("there is no Vulkan loader: {0}; install libvulkan1 and mesa-vulkan-drivers")]
    Loader(String),
    /// No device tells what it compiled.
    #[error(
        "none of {0} Vulkan devices has VK_KHR_pipeline_executable_properties; to compile for AMD's GPUs without one, install Mesa's \
         RADV driver (mesa-vulkan-drivers)"
    )]
    NoDevice(usize),
    /// The device tells statistics, but no assembly.
    #[error("{0} does not show its machine code")]
    NoAssembly(String),
    /// A call of Vulkan failed.
    #[error("{what}: {code}")]
    Vulkan {
        /// The function.
        what: &'static str,
        /// What it returned.
        code: ash::vk::Result,
    },
    /// A shader is none, or not as the verifier's are.
    #[error("{shader}: {message}")]
    Shader {
        /// Its name.
        shader: String,
        /// What is wrong.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The process that compiles for a generation failed.
    #[error("compiling for {generation}: {message}")]
    Process {
        /// The generation, as `RADV_FORCE_FAMILY` names it.
        generation: String,
        /// What it said.
        message: String,
    },
}

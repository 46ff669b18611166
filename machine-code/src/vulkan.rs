//! A Vulkan device that compiles compute pipelines and reports on them (`VK_KHR_pipeline_executable_properties`). No work is ever
//! submitted, so the GPU need not exist.

use std::collections::BTreeMap;
use std::ffi::CStr;

use ash::khr::pipeline_executable_properties as executable;
use ash::vk;

use crate::Error;
use crate::spirv::{Offered, Spirv};

/// A driver's result for a shader.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Compiled {
    /// The driver's statistics by their names, for example `VGPRs`, `Spilled VGPRs`, `Code size`.
    pub statistics: BTreeMap<String, u64>,
    /// The machine code in the driver's disassembly.
    pub assembly: String,
    /// True if the shader's text has floats.
    pub floats: bool,
}

/// An open device.
pub struct Device {
    name: String,
    driver: String,
    offered: Offered,
    // Fields that are dropped by hand, in this order.
    executable: executable::Device,
    device: ash::Device,
    instance: ash::Instance,
    // This field keeps the loader's library open.
    _entry: ash::Entry,
}

fn fault(what: &'static str) -> impl Fn(vk::Result) -> Error {
    move |code| Error::Vulkan { what, code }
}

fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Device {
    /// Opens the first device that reports on compiled code. The loader's environment decides which drivers there are
    /// (`VK_DRIVER_FILES`, and RADV's own `RADV_FORCE_FAMILY`).
    ///
    /// # Errors
    /// If there is no Vulkan loader, or no such device.
    pub fn open() -> Result<Device, Error> {
        // SAFETY: the library is the system's Vulkan loader.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| Error::Loader(error.to_string()))?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: no layer or extension is asked for, and the structure's pointers are valid.
        let instance = unsafe { entry.create_instance(&create, None) }.map_err(fault("vkCreateInstance"))?;
        match open_on(&instance) {
            Ok((name, driver, offered, device)) => {
                let executable = executable::Device::new(&instance, &device);
                Ok(Device { name, driver, offered, executable, device, instance, _entry: entry })
            }
            Err(error) => {
                // SAFETY: nothing made of the instance is left.
                unsafe { instance.destroy_instance(None) };
                Err(error)
            }
        }
    }

    /// The driver's name for the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver and its version.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// The features of the device that its SPIR-V depends on.
    pub fn offered(&self) -> Offered {
        self.offered
    }

    /// Compiles a shader with an entry point `main`.
    ///
    /// # Errors
    /// If the driver does not compile the shader, or does not report its machine code.
    pub fn compile(&self, spirv: &Spirv) -> Result<Compiled, Error> {
        let mut made = Made::of(&self.device);
        let bindings: Vec<_> = (0..)
            .zip(&spirv.uniforms)
            .map(|(number, &uniform)| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(number)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
                    .descriptor_type(match uniform {
                        true => vk::DescriptorType::UNIFORM_BUFFER,
                        false => vk::DescriptorType::STORAGE_BUFFER,
                    })
            })
            .collect();
        let layout = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let module = vk::ShaderModuleCreateInfo::default().code(&spirv.words);
        // SAFETY: the structures and their pointers are valid, and naga's SPIR-V is valid.
        unsafe {
            made.set = self
                .device
                .create_descriptor_set_layout(&layout, None)
                .map_err(fault("vkCreateDescriptorSetLayout"))?;
            let sets = [made.set];
            let layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            made.layout =
                self.device.create_pipeline_layout(&layout, None).map_err(fault("vkCreatePipelineLayout"))?;
            made.module =
                self.device.create_shader_module(&module, None).map_err(fault("vkCreateShaderModule"))?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(made.module)
                .name(c"main");
            let create = vk::ComputePipelineCreateInfo::default()
                .flags(
                    vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                        | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR,
                )
                .stage(stage)
                .layout(made.layout);
            let pipelines = self.device.create_compute_pipelines(vk::PipelineCache::null(), &[create], None);
            made.pipeline = pipelines.map_err(|(_, code)| fault("vkCreateComputePipelines")(code))?[0];
            let statistics = self.statistics(made.pipeline)?;
            let assembly = self.assembly(made.pipeline)?;
            Ok(Compiled { statistics, assembly, floats: spirv.floats })
        }
    }

    /// # Safety
    /// The pipeline is one of this device, compiled to be asked.
    unsafe fn statistics(&self, pipeline: vk::Pipeline) -> Result<BTreeMap<String, u64>, Error> {
        let of = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        // SAFETY: as above; a compute pipeline has one executable, number 0.
        let found = unsafe { self.executable.get_pipeline_executable_statistics(&of) };
        let found = found.map_err(fault("vkGetPipelineExecutableStatisticsKHR"))?;
        let value = |statistic: &vk::PipelineExecutableStatisticKHR| {
            // SAFETY: `format` says which field was written; eight bytes are initialised in any case.
            unsafe {
                match statistic.format {
                    vk::PipelineExecutableStatisticFormatKHR::BOOL32 => statistic.value.b32.into(),
                    vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => statistic.value.f64 as u64,
                    _ => statistic.value.u64,
                }
            }
        };
        Ok(found.iter().map(|statistic| (text(&statistic.name), value(statistic))).collect())
    }

    /// # Safety
    /// As for [`Device::statistics`].
    unsafe fn assembly(&self, pipeline: vk::Pipeline) -> Result<String, Error> {
        const WHAT: &str = "vkGetPipelineExecutableInternalRepresentationsKHR";
        let of = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        // SAFETY: as above. Without memory for the texts the call says how long they are.
        let found = unsafe { self.executable.get_pipeline_executable_internal_representations(&of) };
        let mut found = found.map_err(fault(WHAT))?;
        let mut texts: Vec<Vec<u8>> = found.iter().map(|one| vec![0; one.data_size]).collect();
        for (one, text) in found.iter_mut().zip(&mut texts) {
            one.p_data = text.as_mut_ptr().cast();
        }
        let mut count = found.len() as u32;
        let get = self.executable.fp().get_pipeline_executable_internal_representations_khr;
        // SAFETY: each text has the memory that the first call asked for.
        unsafe { get(self.device.handle(), &of, &mut count, found.as_mut_ptr()) }
            .result()
            .map_err(fault(WHAT))?;
        let assembly = found.iter().zip(&texts).find(|(one, _)| text(&one.name).contains("ssembly"));
        let (_, bytes) = assembly.ok_or_else(|| Error::NoAssembly(self.name.clone()))?;
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the device's objects are gone, and the device belongs to the instance.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// The objects that compiling one shader makes, which are destroyed whether or not it succeeds.
struct Made<'a> {
    device: &'a ash::Device,
    set: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    module: vk::ShaderModule,
    pipeline: vk::Pipeline,
}

impl<'a> Made<'a> {
    fn of(device: &'a ash::Device) -> Made<'a> {
        Made {
            device,
            set: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            module: vk::ShaderModule::null(),
            pipeline: vk::Pipeline::null(),
        }
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: each is null, which is ignored, or was made of this device and is used by nothing.
        unsafe {
            self.device.destroy_pipeline(self.pipeline, None);
            self.device.destroy_shader_module(self.module, None);
            self.device.destroy_pipeline_layout(self.layout, None);
            self.device.destroy_descriptor_set_layout(self.set, None);
        }
    }
}

/// Opens the first device with the extension: its name, its driver, and its features. The enabled features are those that
/// wgpu-hal enables and that change code.
fn open_on(instance: &ash::Instance) -> Result<(String, String, Offered, ash::Device), Error> {
    // SAFETY: the instance is alive, here and below.
    let all =
        unsafe { instance.enumerate_physical_devices() }.map_err(fault("vkEnumeratePhysicalDevices"))?;
    let has = |device: vk::PhysicalDevice, wanted: &CStr| {
        let extensions =
            unsafe { instance.enumerate_device_extension_properties(device) }.unwrap_or_default();
        extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(wanted))
    };
    let fits = |device: &&vk::PhysicalDevice| has(**device, executable::NAME);
    let &physical = all.iter().find(fits).ok_or(Error::NoDevice(all.len()))?;
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    let name = text(&properties.properties.device_name);
    let driver = format!("{} {}", text(&driver.driver_name), text(&driver.driver_info));
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default();
    let mut thirteen = vk::PhysicalDeviceVulkan13Features::default();
    let mut robust = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut twelve)
        .push_next(&mut thirteen)
        .push_next(&mut robust);
    unsafe { instance.get_physical_device_features2(physical, &mut features) };
    let robust_buffer_access = features.features.robust_buffer_access;
    let offered = Offered {
        integer_dot_product: thirteen.shader_integer_dot_product != 0,
        int8: twelve.shader_int8 != 0,
        robust_buffer_access2: robust.robust_buffer_access2 != 0,
        zero_initialize_workgroup_memory: thirteen.shader_zero_initialize_workgroup_memory != 0,
    };
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default().shader_int8(offered.int8);
    let mut thirteen = vk::PhysicalDeviceVulkan13Features::default()
        .shader_integer_dot_product(offered.integer_dot_product)
        .shader_zero_initialize_workgroup_memory(offered.zero_initialize_workgroup_memory);
    let mut robust = vk::PhysicalDeviceRobustness2FeaturesEXT::default()
        .robust_buffer_access2(offered.robust_buffer_access2);
    let mut told =
        vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
    let mut extensions = vec![executable::NAME.as_ptr()];
    let core = vk::PhysicalDeviceFeatures { robust_buffer_access, ..Default::default() };
    let mut create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_features(&core)
        .push_next(&mut twelve)
        .push_next(&mut thirteen)
        .push_next(&mut told);
    if offered.robust_buffer_access2 {
        extensions.push(ash::ext::robustness2::NAME.as_ptr());
        create = create.push_next(&mut robust);
    }
    let create = create.enabled_extension_names(&extensions);
    // SAFETY: the device has these extensions and features, and the structures' pointers are valid.
    let device =
        unsafe { instance.create_device(physical, &create, None) }.map_err(fault("vkCreateDevice"))?;
    Ok((name, driver, offered, device))
}

import leeward from './index.js';

export * from './index.js';
export default leeward.WorkdirSandbox;
